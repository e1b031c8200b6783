package compatibility

import (
	"encoding/json"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// definition is what the changes below are made to.
const definition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Thing, listKind: ThingList, plural: things, singular: thing, shortNames: [th, tg], categories: [all]}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources: {status: {}}
    selectableFields: [{jsonPath: .spec.mode}]
    additionalPrinterColumns: [{name: Mode, type: string, jsonPath: .spec.mode}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [ports]
            x-kubernetes-validations:
            - {rule: has(self.mode), message: mode is needed}
            properties:
              mode: {type: string, enum: [Enforce, Audit], description: The mode.}
              name: {type: string, minLength: 1, maxLength: 63, pattern: "^[a-z]+$", format: hostname}
              plain: {type: string}
              count: {type: integer, format: int32, minimum: 1, maximum: 10, default: 3}
              ports:
                type: array
                maxItems: 8
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [port]
                items:
                  type: object
                  required: [port]
                  properties:
                    port: {type: integer, minimum: 1}
                    protocol: {type: string}
              selector:
                type: object
                x-kubernetes-map-type: atomic
                additionalProperties: {type: string, maxLength: 63}
              target: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}], pattern: "^[0-9]+$"}
          status: {type: object, properties: {ready: {type: boolean}}}
`

// change is a patch of the definition. The paths begin at the version, or with a slash at the
// definition's spec. SPEC stands for the schema of the object's spec, and spec for its properties.
type change struct {
	name, op, path, value string
	breaks                string // a part of the complaint; empty: there is none
}

var changes = []change{
	// The definition.
	{"scope", "replace", "/scope", `"Cluster"`, `the scope "Namespaced" became "Cluster"`},
	{"group", "replace", "/group", `"example.org"`, "the group"},
	{"kind", "replace", "/names/kind", `"Thingy"`, "the kind"},
	{"list kind", "replace", "/names/listKind", `"Things"`, "the list kind"},
	{"plural", "replace", "/names/plural", `"thingses"`, "the plural name"},
	{"singular", "replace", "/names/singular", `"thingy"`, "the singular name"},
	{"short name removed", "remove", "/names/shortNames/0", "", "the short name th is gone"},
	{"short name added", "add", "/names/shortNames/-", `"tng"`, ""},
	{"category removed", "remove", "/names/categories/0", "", "the category all is gone"},
	{"version removed", "replace", "name", `"v1beta1"`, "v1alpha1: the version is gone"},
	{"version added", "add", "/versions/-", `{"name": "v1beta1", "served": true, "storage": false}`, ""},
	{"version not served", "replace", "served", "false", "v1alpha1: the version is not served any more"},
	{"version not stored", "replace", "storage", "false", "v1alpha1: objects are not stored in this version"},
	{"version deprecated", "add", "deprecated", "true", ""},
	{"status no subresource", "remove", "subresources/status", "", "the subresource status is gone"},
	{"scale added", "add", "subresources/scale",
		`{"specReplicasPath": ".spec.count", "statusReplicasPath": ".status.count"}`, ""},
	{"field selector removed", "remove", "selectableFields/0", "", ".spec.mode can't be used as a field selector"},
	{"column removed", "remove", "additionalPrinterColumns/0", "", ""},

	// Fields.
	{"field removed", "remove", "spec/plain", "", ".spec.plain: the field is gone"},
	{"field of an item removed", "remove", "spec/ports/items/properties/protocol", "",
		".spec.ports[].protocol: the field is gone"},
	{"field of status removed", "remove", "schema/openAPIV3Schema/properties/status/properties/ready", "",
		".status.ready: the field is gone"},
	{"field added", "add", "spec/extra",
		`{"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}`, ""},
	{"required field added", "add", "SPEC/required/-", `"plain"`, ".spec: required"},
	{"required field of an item added", "add", "spec/ports/items/required/-", `"protocol"`, ".spec.ports[]: required"},
	{"field no longer required", "remove", "spec/ports/items/required/0", "", ""},
	{"type changed", "replace", "spec/plain/type", `"integer"`, ".spec.plain: type"},
	{"description changed", "replace", "spec/mode/description", `"How."`, ""},

	// Rules.
	{"rule added", "add", "SPEC/x-kubernetes-validations/-", `{"rule": "self.count < 9"}`,
		".spec: rule: new or changed: self.count < 9"},
	{"rule changed", "replace", "SPEC/x-kubernetes-validations/0/rule", `"!has(self.mode)"`,
		".spec: rule: new or changed: !has(self.mode)"},
	{"rule asks for transitions", "add", "SPEC/x-kubernetes-validations/0/optionalOldSelf",
		"true", ".spec: rule"},
	{"message changed", "replace", "SPEC/x-kubernetes-validations/0/message", `"set mode"`, ""},
	{"rule removed", "remove", "SPEC/x-kubernetes-validations", "", ""},
	{"rule of a field added", "add", "spec/plain/x-kubernetes-validations", `[{"rule": "self != ''"}]`,
		".spec.plain: rule"},

	// Values.
	{"enum value removed", "remove", "spec/mode/enum/1", "", ".spec.mode: enum"},
	{"enum value added", "add", "spec/mode/enum/-", `"Off"`, ""},
	{"enum added", "add", "spec/plain/enum", `["a"]`, ".spec.plain: enum"},
	{"enum removed", "remove", "spec/mode/enum", "", ""},
	{"minimum raised", "replace", "spec/count/minimum", "2", ".spec.count: minimum"},
	{"minimum lowered", "replace", "spec/count/minimum", "0", ""},
	{"minimum of an item raised", "replace", "spec/ports/items/properties/port/minimum", "2",
		".spec.ports[].port: minimum"},
	{"minimum exclusive", "add", "spec/count/exclusiveMinimum", "true", ".spec.count: exclusiveMinimum"},
	{"maximum lowered", "replace", "spec/count/maximum", "9", ".spec.count: maximum"},
	{"maximum raised", "replace", "spec/count/maximum", "11", ""},
	{"maximum removed", "remove", "spec/count/maximum", "", ""},
	{"maxLength added", "add", "spec/plain/maxLength", "9", ".spec.plain: maxLength"},
	{"maxLength raised", "replace", "spec/name/maxLength", "253", ""},
	{"maxLength of a value lowered", "replace", "spec/selector/additionalProperties/maxLength", "9",
		".spec.selector{}: maxLength"},
	{"minLength raised", "replace", "spec/name/minLength", "2", ".spec.name: minLength"},
	{"maxItems lowered", "replace", "spec/ports/maxItems", "7", ".spec.ports: maxItems"},
	{"minItems added", "add", "spec/ports/minItems", "1", ".spec.ports: minItems"},
	{"maxProperties added", "add", "spec/selector/maxProperties", "9", ".spec.selector: maxProperties"},
	{"minProperties added", "add", "spec/selector/minProperties", "1", ".spec.selector: minProperties"},
	{"pattern changed", "replace", "spec/name/pattern", `"^[a-f]+$"`, ".spec.name: form"},
	{"pattern added", "add", "spec/plain/pattern", `"^a"`, ".spec.plain: form"},
	{"pattern removed", "remove", "spec/name/pattern", "", ""},
	{"pattern beside anyOf changed", "replace", "spec/target/pattern", `"^[1-9]+$"`, ".spec.target: form"},
	{"anyOf changed", "remove", "spec/target/anyOf/1", "", ".spec.target: anyOf"},
	{"not added", "add", "spec/plain/not", `{"pattern": "^a"}`, ".spec.plain: not"},
	{"format changed", "replace", "spec/name/format", `"ipv4"`, ".spec.name: form"},
	{"format removed", "remove", "spec/name/format", "", ""},
	{"nullable", "add", "spec/plain/nullable", "true", ".spec.plain: nullable"},
	{"default changed", "replace", "spec/count/default", "4", ".spec.count: default"},
	{"default removed", "remove", "spec/count/default", "", ".spec.count: default"},
	{"default added", "add", "spec/plain/default", `"a"`, ".spec.plain: default"},

	// Lists and maps, as server-side apply merges them.
	{"list type changed", "replace", "spec/ports/x-kubernetes-list-type", `"atomic"`,
		`.spec.ports: x-kubernetes-list-type: "\"map\"" became "\"atomic\""`},
	{"list key changed", "replace", "spec/ports/x-kubernetes-list-map-keys/0", `"protocol"`,
		".spec.ports: x-kubernetes-list-map-keys"},
	{"map type changed", "replace", "spec/selector/x-kubernetes-map-type", `"granular"`,
		".spec.selector: x-kubernetes-map-type"},
	{"items without a schema", "remove", "spec/ports/items", "", ".spec.ports[]: the schema is gone"},
	{"unknown fields kept", "add", "spec/selector/x-kubernetes-preserve-unknown-fields", "true",
		".spec.selector: x-kubernetes-preserve-unknown-fields"},
}

// TestChangesAreJudged makes one change at a time to a definition, and wants it to be judged as
// breaking or harmless.
func TestChangesAreJudged(t *testing.T) {
	whole, err := yaml.YAMLToJSON([]byte(definition))
	if err != nil {
		t.Fatal(err)
	}
	was := decode(t, whole)
	if found := Breaking(was, was); len(found) > 0 {
		t.Errorf("no change is breaking: %v", found)
	}
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			found := Breaking(was, decode(t, c.apply(t, whole)))
			is := strings.Join(found, "\n")
			if (is == "") != (c.breaks == "") || !strings.Contains(is, c.breaks) || len(found) > 1 {
				t.Errorf("found %q, want %q", is, c.breaks)
			}
		})
	}
}

func (c change) apply(t *testing.T, document []byte) []byte {
	t.Helper()
	const version = "/spec/versions/0/"
	const specSchema = version + "schema/openAPIV3Schema/properties/spec/"
	path := version + c.path
	if strings.HasPrefix(c.path, "/") {
		path = "/spec" + c.path
	} else if keyword, ok := strings.CutPrefix(c.path, "SPEC/"); ok {
		path = specSchema + keyword
	} else if field, ok := strings.CutPrefix(c.path, "spec/"); ok {
		path = specSchema + "properties/" + field
	}
	step := `[{"op": "` + c.op + `", "path": "` + path + `"`
	if c.value != "" {
		step += `, "value": ` + c.value
	}
	patch, err := jsonpatch.DecodePatch([]byte(step + "}]"))
	if err != nil {
		t.Fatal(err)
	}
	changed, err := patch.Apply(document)
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

func decode(t *testing.T, document []byte) *apiextensions.CustomResourceDefinition {
	t.Helper()
	definition := &apiextensions.CustomResourceDefinition{}
	if err := json.Unmarshal(document, definition); err != nil {
		t.Fatal(err)
	}
	return definition
}

// TestStatusBecomesASubresource wants only a status that clients may have written to count.
func TestStatusBecomesASubresource(t *testing.T) {
	whole, err := yaml.YAMLToJSON([]byte(definition))
	if err != nil {
		t.Fatal(err)
	}
	is := decode(t, whole)
	without := is.DeepCopy()
	without.Spec.Versions[0].Subresources = nil
	if found := Breaking(without, is); len(found) != 1 || !strings.Contains(found[0], "status became a subresource") {
		t.Errorf("with a status before: %v", found)
	}
	delete(without.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties, "status")
	if found := Breaking(without, is); len(found) > 0 {
		t.Errorf("without a status before: %v", found)
	}
}
