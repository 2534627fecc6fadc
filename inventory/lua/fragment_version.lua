-- Fragment for other scripts: sale_version(version, at) returns the next version of a sale, or nil if
-- `version` is not valid. A version is "<item's version>.<build>.<turn>". The turn rises with each change that
-- invalidates the sold-out marks of the processes. `at`, if given, is the item's new version. The second result
-- is the item's version before.
local function sale_version(version, at)
  local was, build, turn = string.match(version, '^(%d+)%.(%d+)%.?(%d*)$')
  if not was then
    return nil
  end
  turn = turn == '' and 0 or tonumber(turn)
  return (at or was) .. '.' .. build .. '.' .. string.format('%d', turn + 1), tonumber(was)
end
