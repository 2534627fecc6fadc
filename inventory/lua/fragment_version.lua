-- Fragment for other scripts: sale_version(version, at) returns the next version of a sale, or nil when
-- `version` is none. A version is "<item's version>.<build>.<turn>"; the turn rises with
-- everything that makes void what a process remembers of the sale, and `at`, if given, is the item's
-- new version. The second value is the item's version as it was.
local function sale_version(version, at)
  local was, build, turn = string.match(version, '^(%d+)%.(%d+)%.?(%d*)$')
  if not was then
    return nil
  end
  turn = turn == '' and 0 or tonumber(turn)
  return (at or was) .. '.' .. build .. '.' .. string.format('%d', turn + 1), tonumber(was)
end
