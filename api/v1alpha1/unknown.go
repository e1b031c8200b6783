package v1alpha1

import "sigs.k8s.io/json"

// A CustomResourceDefinition may be newer than the manager and let fields in that these types lack.
// What was read without them could be a weaker check or a wider rule than its author wrote. So the
// specs remember that there were such fields, and nobody acts on what nobody understood.

// UnmarshalJSON reads a spec and notes in Unknown what these types don't know.
func (s *ExternalBackendSpec) UnmarshalJSON(data []byte) error {
	type plain ExternalBackendSpec
	return unmarshal(data, (*plain)(s), &s.Unknown)
}

// UnmarshalJSON reads a spec and notes in Unknown what these types don't know, but for its rules,
// which note it themselves.
func (s *ExternalBackendPolicySpec) UnmarshalJSON(data []byte) error {
	type plain ExternalBackendPolicySpec
	return unmarshal(data, (*plain)(s), &s.Unknown)
}

// UnmarshalJSON reads a rule and notes in Unknown what these types don't know.
func (r *PolicyRule) UnmarshalJSON(data []byte) error {
	type plain PolicyRule
	return unmarshal(data, (*plain)(r), &r.Unknown)
}

// unmarshal reads data as the API server does and notes what the type of into lacks.
func unmarshal(data []byte, into any, unknown *[]string) error {
	strict, err := json.UnmarshalStrict(data, into, json.DisallowUnknownFields)
	*unknown = nil
	for _, e := range strict {
		*unknown = append(*unknown, e.Error())
	}
	return err
}
