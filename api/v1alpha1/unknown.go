package v1alpha1

import "sigs.k8s.io/json"

// A CustomResourceDefinition may be newer than the manager, and accept fields that these types
// lack. Read without them, a check could be weaker, or a rule wider, than its author wrote it. So
// each spec remembers the fields that it lacks, and the manager does not act on a spec that it does
// not fully know.

// UnmarshalJSON reads a spec and notes in Unknown the fields that these types lack.
func (s *ExternalBackendSpec) UnmarshalJSON(data []byte) error {
	type plain ExternalBackendSpec
	return unmarshal(data, (*plain)(s), &s.Unknown)
}

// UnmarshalJSON reads a spec and notes in Unknown the fields that these types lack. Each rule notes
// its own.
func (s *ExternalBackendPolicySpec) UnmarshalJSON(data []byte) error {
	type plain ExternalBackendPolicySpec
	return unmarshal(data, (*plain)(s), &s.Unknown)
}

// UnmarshalJSON reads a spec and notes in Unknown the fields that these types lack.
func (s *ExternalBackendOverrideSpec) UnmarshalJSON(data []byte) error {
	type plain ExternalBackendOverrideSpec
	return unmarshal(data, (*plain)(s), &s.Unknown)
}

// UnmarshalJSON reads a rule and notes in Unknown the fields that these types lack.
func (r *PolicyRule) UnmarshalJSON(data []byte) error {
	type plain PolicyRule
	return unmarshal(data, (*plain)(r), &r.Unknown)
}

// unmarshal reads data as the API server does, and notes the fields that the type of into lacks.
func unmarshal(data []byte, into any, unknown *[]string) error {
	strict, err := json.UnmarshalStrict(data, into, json.DisallowUnknownFields)
	*unknown = nil
	for _, e := range strict {
		*unknown = append(*unknown, e.Error())
	}
	return err
}
