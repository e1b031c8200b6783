-- An ExternalBackend is Degraded where a person has to act or nothing gets traffic, and Progressing
-- where time or another object may mend it: a sync fails at the first Degraded that it sees.

-- The first rule that applies decides, with the message of its condition. A rule without a reason
-- applies whatever the reason is.
local rules = {
  -- Stalled comes two minutes after what another object may mend, such as a missing Service.
  {type = "Stalled", status = "True", health = "Degraded"},
  {type = "Permitted", status = "False", health = "Degraded"},
  {type = "Programmed", status = "False", health = "Progressing"},
  {type = "ResolvedRefs", status = "False", health = "Progressing"},
  -- A name without an answer yet, or an endpoint without a verdict yet.
  {type = "NamesResolved", status = "Unknown", reason = "Pending", health = "Progressing"},
  {type = "Healthy", status = "Unknown", reason = "Pending", health = "Progressing"},
  {type = "Ready", status = "False", health = "Degraded"},
  {type = "Ready", status = "Unknown", health = "Degraded"},
  {type = "Ready", status = "True", health = "Healthy"},
}
-- What is wrong although traffic flows. It stands behind the message of a healthy one.
local flaws = {"NamesResolved", "Healthy"}

local status, conditions = obj.status or {}, {}
if status.observedGeneration == obj.metadata.generation then
  for _, condition in ipairs(status.conditions or {}) do
    conditions[condition.type] = condition
  end
end

local health = {status = "Progressing", message = "Waiting for the operator."}
for _, rule in ipairs(conditions.Ready and rules or {}) do
  local c = conditions[rule.type]
  if c ~= nil and c.status == rule.status and (rule.reason == nil or c.reason == rule.reason) then
    health = {status = rule.health, message = c.message}
    break
  end
end

if health.status == "Healthy" then
  for _, type in ipairs(flaws) do
    if conditions[type] ~= nil and conditions[type].status == "False" then
      health.message = health.message .. " " .. conditions[type].message
    end
  end
end
return health
