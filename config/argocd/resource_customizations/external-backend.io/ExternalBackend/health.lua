-- An ExternalBackend is Degraded where a person has to act or nothing gets traffic, and Progressing
-- where time or another object may mend it: a sync fails at the first Degraded that it sees.
local waiting = {status = "Progressing", message = "Waiting for the operator."}

if obj.status == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  return waiting
end

local conditions = {}
for _, condition in ipairs(obj.status.conditions or {}) do
  conditions[condition.type] = condition
end

local function is(type, status)
  return conditions[type] ~= nil and conditions[type].status == status
end

local ready = conditions.Ready
if ready == nil then
  return waiting
end

-- Stalled comes two minutes after what another object may mend, such as a missing Service.
for _, type in ipairs({"Stalled", "Permitted"}) do
  if is(type, type == "Stalled" and "True" or "False") then
    return {status = "Degraded", message = conditions[type].message}
  end
end

for _, type in ipairs({"Programmed", "ResolvedRefs"}) do
  if is(type, "False") then
    return {status = "Progressing", message = conditions[type].message}
  end
end

-- A name without an answer yet, or an endpoint without a verdict yet.
for _, type in ipairs({"NamesResolved", "Healthy"}) do
  if is(type, "Unknown") and conditions[type].reason == "Pending" then
    return {status = "Progressing", message = conditions[type].message}
  end
end

if ready.status ~= "True" then
  return {status = "Degraded", message = ready.message}
end

-- Traffic flows. What is wrong all the same stands behind it.
local message = ready.message
for _, type in ipairs({"NamesResolved", "Healthy"}) do
  if is(type, "False") then
    message = message .. " " .. conditions[type].message
  end
end
return {status = "Healthy", message = message}
