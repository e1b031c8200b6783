local applied = false
for _, condition in ipairs((obj.status or {}).conditions or {}) do
  applied = applied or condition.type == "Applied" and condition.status == "True"
end

return {
  resume = {
    displayName = "Resume: end the override now",
    iconClass = "fa fa-fw fa-play-circle",
    disabled = not applied,
  },
}
