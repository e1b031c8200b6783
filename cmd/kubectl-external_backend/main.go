// Command kubectl-external_backend is the kubectl plugin of the External Backend Operator. kubectl
// finds it by its name and runs it as `kubectl external-backend`.
package main

import "github.com/external-backend/operator/internal/plugin"

// version is set when a release is built.
var version = "dev"

func main() { plugin.Main(version) }
