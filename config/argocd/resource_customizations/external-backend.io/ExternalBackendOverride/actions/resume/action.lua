local os = require("os")

obj.spec.expirationTime = os.date("!%Y-%m-%dT%H:%M:%SZ")
return obj
