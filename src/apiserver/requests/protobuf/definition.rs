//! CustomResourceDefinitions, with schemas within schemas.

use super::objects::META;
use super::{ProtobufField, ProtobufType, list, plain, pointer, required};

const NAMES: ProtobufType = ProtobufType::Message(&[
    required(1, "plural", ProtobufType::Text),
    plain(2, "singular", ProtobufType::Text),
    list(3, "shortNames", ProtobufType::Text),
    required(4, "kind", ProtobufType::Text),
    plain(5, "listKind", ProtobufType::Text),
    list(6, "categories", ProtobufType::Text),
]);

pub(super) const DEFINITION: &[ProtobufField] = &[
    plain(1, "metadata", ProtobufType::Message(META)),
    plain(
        2,
        "spec",
        ProtobufType::Message(&[
            required(1, "group", ProtobufType::Text),
            plain(3, "names", NAMES),
            required(4, "scope", ProtobufType::Text),
            list(7, "versions", ProtobufType::Message(VERSION)),
            pointer(9, "conversion", ProtobufType::Message(CONVERSION)),
            plain(10, "preserveUnknownFields", ProtobufType::Bool),
        ]),
    ),
    plain(
        3,
        "status",
        ProtobufType::Message(&[
            list(1, "conditions", ProtobufType::Message(CONDITION)),
            plain(2, "acceptedNames", NAMES),
            list(3, "storedVersions", ProtobufType::Text),
            plain(4, "observedGeneration", ProtobufType::Int),
        ]),
    ),
];

const CONDITION: &[ProtobufField] = &[
    required(1, "type", ProtobufType::Text),
    required(2, "status", ProtobufType::Text),
    plain(3, "lastTransitionTime", ProtobufType::Time),
    plain(4, "reason", ProtobufType::Text),
    plain(5, "message", ProtobufType::Text),
    plain(6, "observedGeneration", ProtobufType::Int),
];

const CONVERSION: &[ProtobufField] = &[
    required(1, "strategy", ProtobufType::Text),
    pointer(
        2,
        "webhook",
        ProtobufType::Message(&[
            pointer(2, "clientConfig", ProtobufType::Message(WEBHOOK_CLIENT)),
            list(3, "conversionReviewVersions", ProtobufType::Text),
        ]),
    ),
];

/// Where a webhook is.
pub(super) const WEBHOOK_CLIENT: &[ProtobufField] = &[
    pointer(
        1,
        "service",
        ProtobufType::Message(&[
            required(1, "namespace", ProtobufType::Text),
            required(2, "name", ProtobufType::Text),
            pointer(3, "path", ProtobufType::Text),
            pointer(4, "port", ProtobufType::Int),
        ]),
    ),
    plain(2, "caBundle", ProtobufType::Bytes),
    pointer(3, "url", ProtobufType::Text),
];

const VERSION: &[ProtobufField] = &[
    required(1, "name", ProtobufType::Text),
    required(2, "served", ProtobufType::Bool),
    required(3, "storage", ProtobufType::Bool),
    pointer(4, "schema", ProtobufType::Message(&[pointer(1, "openAPIV3Schema", ProtobufType::Schema)])),
    pointer(
        5,
        "subresources",
        ProtobufType::Message(&[
            pointer(1, "status", ProtobufType::Message(&[])),
            pointer(
                2,
                "scale",
                ProtobufType::Message(&[
                    required(1, "specReplicasPath", ProtobufType::Text),
                    required(2, "statusReplicasPath", ProtobufType::Text),
                    pointer(3, "labelSelectorPath", ProtobufType::Text),
                ]),
            ),
        ]),
    ),
    list(6, "additionalPrinterColumns", ProtobufType::Message(COLUMN)),
    plain(7, "deprecated", ProtobufType::Bool),
    pointer(8, "deprecationWarning", ProtobufType::Text),
    list(9, "selectableFields", ProtobufType::Message(&[required(1, "jsonPath", ProtobufType::Text)])),
];

const COLUMN: &[ProtobufField] = &[
    required(1, "name", ProtobufType::Text),
    required(2, "type", ProtobufType::Text),
    plain(3, "format", ProtobufType::Text),
    plain(4, "description", ProtobufType::Text),
    plain(5, "priority", ProtobufType::Int),
    required(6, "jsonPath", ProtobufType::Text),
];

const BOOL_OR_SCHEMA: ProtobufType =
    ProtobufType::Either(&[pointer(2, "schema", ProtobufType::Schema), required(1, "allows", ProtobufType::Bool)]);

/// `JSONSchemaProps`.
pub(super) const SCHEMA: &[ProtobufField] = &[
    plain(1, "id", ProtobufType::Text),
    plain(2, "$schema", ProtobufType::Text),
    pointer(3, "$ref", ProtobufType::Text),
    plain(4, "description", ProtobufType::Text),
    plain(5, "type", ProtobufType::Text),
    plain(6, "format", ProtobufType::Text),
    plain(7, "title", ProtobufType::Text),
    pointer(8, "default", ProtobufType::Json),
    pointer(9, "maximum", ProtobufType::Double),
    plain(10, "exclusiveMaximum", ProtobufType::Bool),
    pointer(11, "minimum", ProtobufType::Double),
    plain(12, "exclusiveMinimum", ProtobufType::Bool),
    pointer(13, "maxLength", ProtobufType::Int),
    pointer(14, "minLength", ProtobufType::Int),
    plain(15, "pattern", ProtobufType::Text),
    pointer(16, "maxItems", ProtobufType::Int),
    pointer(17, "minItems", ProtobufType::Int),
    plain(18, "uniqueItems", ProtobufType::Bool),
    pointer(19, "multipleOf", ProtobufType::Double),
    list(20, "enum", ProtobufType::Json),
    pointer(21, "maxProperties", ProtobufType::Int),
    pointer(22, "minProperties", ProtobufType::Int),
    list(23, "required", ProtobufType::Text),
    pointer(
        24,
        "items",
        ProtobufType::Either(&[
            list(2, "jSONSchemas", ProtobufType::Schema),
            pointer(1, "schema", ProtobufType::Schema),
        ]),
    ),
    list(25, "allOf", ProtobufType::Schema),
    list(26, "oneOf", ProtobufType::Schema),
    list(27, "anyOf", ProtobufType::Schema),
    pointer(28, "not", ProtobufType::Schema),
    plain(29, "properties", ProtobufType::Map(&ProtobufType::Schema)),
    pointer(30, "additionalProperties", BOOL_OR_SCHEMA),
    plain(31, "patternProperties", ProtobufType::Map(&ProtobufType::Schema)),
    plain(
        32,
        "dependencies",
        ProtobufType::Map(&ProtobufType::Either(&[
            list(2, "property", ProtobufType::Text),
            pointer(1, "schema", ProtobufType::Schema),
        ])),
    ),
    pointer(33, "additionalItems", BOOL_OR_SCHEMA),
    plain(34, "definitions", ProtobufType::Map(&ProtobufType::Schema)),
    pointer(
        35,
        "externalDocs",
        ProtobufType::Message(&[plain(1, "description", ProtobufType::Text), plain(2, "url", ProtobufType::Text)]),
    ),
    pointer(36, "example", ProtobufType::Json),
    plain(37, "nullable", ProtobufType::Bool),
    pointer(38, "x-kubernetes-preserve-unknown-fields", ProtobufType::Bool),
    plain(39, "x-kubernetes-embedded-resource", ProtobufType::Bool),
    plain(40, "x-kubernetes-int-or-string", ProtobufType::Bool),
    list(41, "x-kubernetes-list-map-keys", ProtobufType::Text),
    pointer(42, "x-kubernetes-list-type", ProtobufType::Text),
    pointer(43, "x-kubernetes-map-type", ProtobufType::Text),
    list(44, "x-kubernetes-validations", ProtobufType::Message(RULE)),
];

const RULE: &[ProtobufField] = &[
    required(1, "rule", ProtobufType::Text),
    plain(2, "message", ProtobufType::Text),
    plain(3, "messageExpression", ProtobufType::Text),
    pointer(4, "reason", ProtobufType::Text),
    plain(5, "fieldPath", ProtobufType::Text),
    pointer(6, "optionalOldSelf", ProtobufType::Bool),
];
