-- An ExternalBackendPolicy is Degraded where it has something that the operator can't read, which
-- then allows nothing. One that refuses something does what it is for, and is Healthy.
local status = obj.status or {}
local accepted
for _, condition in ipairs(status.conditions or {}) do
  if condition.type == "Accepted" then
    accepted = condition
  end
end

if accepted == nil or status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "Waiting for the operator."}
end
if accepted.status ~= "True" then
  return {status = "Degraded", message = accepted.message}
end

local message = "Selects " .. (status.selectedExternalBackends or 0) ..
  " ExternalBackends in " .. (status.selectedNamespaces or 0) .. " namespaces."
local refused = status.refusedExternalBackends or 0
if refused > 0 then
  local verb = obj.spec.mode == "Audit" and "would be" or "is"
  message = message .. " Something of " .. refused .. " of them " .. verb .. " refused."
end
return {status = "Healthy", message = message}
