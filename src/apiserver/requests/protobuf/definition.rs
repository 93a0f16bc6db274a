//! CustomResourceDefinitions, with schemas within schemas.

use super::objects::META;
use super::{Field, Type, list, plain, pointer, required};

const NAMES: Type = Type::Message(&[
    required(1, "plural", Type::Text),
    plain(2, "singular", Type::Text),
    list(3, "shortNames", Type::Text),
    required(4, "kind", Type::Text),
    plain(5, "listKind", Type::Text),
    list(6, "categories", Type::Text),
]);

pub(super) const DEFINITION: &[Field] = &[
    plain(1, "metadata", Type::Message(META)),
    plain(
        2,
        "spec",
        Type::Message(&[
            required(1, "group", Type::Text),
            plain(3, "names", NAMES),
            required(4, "scope", Type::Text),
            list(7, "versions", Type::Message(VERSION)),
            pointer(9, "conversion", Type::Message(CONVERSION)),
            plain(10, "preserveUnknownFields", Type::Bool),
        ]),
    ),
    plain(
        3,
        "status",
        Type::Message(&[
            list(1, "conditions", Type::Message(CONDITION)),
            plain(2, "acceptedNames", NAMES),
            list(3, "storedVersions", Type::Text),
            plain(4, "observedGeneration", Type::Int),
        ]),
    ),
];

const CONDITION: &[Field] = &[
    required(1, "type", Type::Text),
    required(2, "status", Type::Text),
    plain(3, "lastTransitionTime", Type::Time),
    plain(4, "reason", Type::Text),
    plain(5, "message", Type::Text),
    plain(6, "observedGeneration", Type::Int),
];

const CONVERSION: &[Field] = &[
    required(1, "strategy", Type::Text),
    pointer(
        2,
        "webhook",
        Type::Message(&[
            pointer(2, "clientConfig", Type::Message(WEBHOOK_CLIENT)),
            list(3, "conversionReviewVersions", Type::Text),
        ]),
    ),
];

/// Where a webhook is.
pub(super) const WEBHOOK_CLIENT: &[Field] = &[
    pointer(
        1,
        "service",
        Type::Message(&[
            required(1, "namespace", Type::Text),
            required(2, "name", Type::Text),
            pointer(3, "path", Type::Text),
            pointer(4, "port", Type::Int),
        ]),
    ),
    plain(2, "caBundle", Type::Bytes),
    pointer(3, "url", Type::Text),
];

const VERSION: &[Field] = &[
    required(1, "name", Type::Text),
    required(2, "served", Type::Bool),
    required(3, "storage", Type::Bool),
    pointer(4, "schema", Type::Message(&[pointer(1, "openAPIV3Schema", Type::Schema)])),
    pointer(
        5,
        "subresources",
        Type::Message(&[
            pointer(1, "status", Type::Message(&[])),
            pointer(
                2,
                "scale",
                Type::Message(&[
                    required(1, "specReplicasPath", Type::Text),
                    required(2, "statusReplicasPath", Type::Text),
                    pointer(3, "labelSelectorPath", Type::Text),
                ]),
            ),
        ]),
    ),
    list(6, "additionalPrinterColumns", Type::Message(COLUMN)),
    plain(7, "deprecated", Type::Bool),
    pointer(8, "deprecationWarning", Type::Text),
    list(9, "selectableFields", Type::Message(&[required(1, "jsonPath", Type::Text)])),
];

const COLUMN: &[Field] = &[
    required(1, "name", Type::Text),
    required(2, "type", Type::Text),
    plain(3, "format", Type::Text),
    plain(4, "description", Type::Text),
    plain(5, "priority", Type::Int),
    required(6, "jsonPath", Type::Text),
];

const BOOL_OR_SCHEMA: Type = Type::Either(&[pointer(2, "schema", Type::Schema), required(1, "allows", Type::Bool)]);

/// `JSONSchemaProps`.
pub(super) const SCHEMA: &[Field] = &[
    plain(1, "id", Type::Text),
    plain(2, "$schema", Type::Text),
    pointer(3, "$ref", Type::Text),
    plain(4, "description", Type::Text),
    plain(5, "type", Type::Text),
    plain(6, "format", Type::Text),
    plain(7, "title", Type::Text),
    pointer(8, "default", Type::Json),
    pointer(9, "maximum", Type::Double),
    plain(10, "exclusiveMaximum", Type::Bool),
    pointer(11, "minimum", Type::Double),
    plain(12, "exclusiveMinimum", Type::Bool),
    pointer(13, "maxLength", Type::Int),
    pointer(14, "minLength", Type::Int),
    plain(15, "pattern", Type::Text),
    pointer(16, "maxItems", Type::Int),
    pointer(17, "minItems", Type::Int),
    plain(18, "uniqueItems", Type::Bool),
    pointer(19, "multipleOf", Type::Double),
    list(20, "enum", Type::Json),
    pointer(21, "maxProperties", Type::Int),
    pointer(22, "minProperties", Type::Int),
    list(23, "required", Type::Text),
    pointer(24, "items", Type::Either(&[list(2, "jSONSchemas", Type::Schema), pointer(1, "schema", Type::Schema)])),
    list(25, "allOf", Type::Schema),
    list(26, "oneOf", Type::Schema),
    list(27, "anyOf", Type::Schema),
    pointer(28, "not", Type::Schema),
    plain(29, "properties", Type::Map(&Type::Schema)),
    pointer(30, "additionalProperties", BOOL_OR_SCHEMA),
    plain(31, "patternProperties", Type::Map(&Type::Schema)),
    plain(
        32,
        "dependencies",
        Type::Map(&Type::Either(&[list(2, "property", Type::Text), pointer(1, "schema", Type::Schema)])),
    ),
    pointer(33, "additionalItems", BOOL_OR_SCHEMA),
    plain(34, "definitions", Type::Map(&Type::Schema)),
    pointer(35, "externalDocs", Type::Message(&[plain(1, "description", Type::Text), plain(2, "url", Type::Text)])),
    pointer(36, "example", Type::Json),
    plain(37, "nullable", Type::Bool),
    pointer(38, "x-kubernetes-preserve-unknown-fields", Type::Bool),
    plain(39, "x-kubernetes-embedded-resource", Type::Bool),
    plain(40, "x-kubernetes-int-or-string", Type::Bool),
    list(41, "x-kubernetes-list-map-keys", Type::Text),
    pointer(42, "x-kubernetes-list-type", Type::Text),
    pointer(43, "x-kubernetes-map-type", Type::Text),
    list(44, "x-kubernetes-validations", Type::Message(RULE)),
];

const RULE: &[Field] = &[
    required(1, "rule", Type::Text),
    plain(2, "message", Type::Text),
    plain(3, "messageExpression", Type::Text),
    pointer(4, "reason", Type::Text),
    plain(5, "fieldPath", Type::Text),
    pointer(6, "optionalOldSelf", Type::Bool),
];
