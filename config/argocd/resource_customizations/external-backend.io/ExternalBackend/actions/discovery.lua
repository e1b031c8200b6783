-- While an ExternalBackendOverride is applied, a younger one would have to wait for its end.
local overridden = obj.status ~= nil and obj.status.override ~= nil

return {
  pin = {
    displayName = "Pin a tier for some hours",
    iconClass = "fa fa-fw fa-thumbtack",
    disabled = overridden,
    params = {{name = "tier"}, {name = "hours"}},
  },
  drain = {
    displayName = "Drain a target for some hours",
    iconClass = "fa fa-fw fa-arrow-circle-down",
    disabled = overridden,
    params = {{name = "target"}, {name = "hours"}},
  },
  disable = {
    displayName = "Disable a target for some hours",
    iconClass = "fa fa-fw fa-ban",
    disabled = overridden,
    params = {{name = "target"}, {name = "hours"}},
  },
}
