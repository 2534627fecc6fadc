-- Fragment for other scripts. A sale's hash of buyers has one value per buyer, "<units> <order> <key>": how many units
-- the buyer holds, and one of the buyer's orders with its idempotency key. The others are in the idempotency hash,
-- under "<buyer> <key>". Most buyers have one order, which takes one field.
--
-- An order is "<quantity>:<order id>", followed by ":r" once its units were released.
--
-- sale_buyer(value) returns the units as a number, the order, and the key; nil if the value is damaged.
local function sale_buyer(value)
  local units, order, key = string.match(value, '^(%d+) (%d+:%S+) (.*)$')
  return tonumber(units or ''), order, key
end
