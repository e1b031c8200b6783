local os = require("os")

-- Creates an ExternalBackendOverride that ends by itself. The spec stays as it is in Git, so that
-- self-heal has nothing to put back.

local tier = tonumber(actionParams["tier"] or "")
if not tier or tier < 0 or tier > 127 or tier % 1 ~= 0 then
  error("tier must be a whole number from 0 to 127: " .. (actionParams["tier"] or ""), 0)
end

local hours = actionParams["hours"]
if hours == nil or hours == "" then
  hours = "2"
end
local ends = os.date("!*t")
if not tonumber(hours) or tonumber(hours) <= 0 or tonumber(hours) > 168 then
  error("hours must be a number up to 168, which is 7 days: " .. hours, 0)
end
-- The time is UTC. It passes through local time both ways, because os.date shows no other as UTC
-- than the present.
ends.sec = ends.sec + tonumber(hours) * 3600
local expirationTime = os.date("%Y-%m-%dT%H:%M:%SZ", os.time(ends))

local override = {
  apiVersion = obj.apiVersion,
  kind = "ExternalBackendOverride",
  metadata = {
    name = obj.metadata.name .. "-" .. os.date("!%y%m%d%H%M%S"),
    namespace = obj.metadata.namespace,
    ownerReferences = {
      {apiVersion = obj.apiVersion, kind = obj.kind, name = obj.metadata.name, uid = obj.metadata.uid},
    },
  },
  spec = {
    externalBackendRef = {name = obj.metadata.name},
    pinnedTier = tier,
    expirationTime = expirationTime,
  },
}
return {{operation = "create", resource = override}}
