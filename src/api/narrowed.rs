//! What a definition says beyond its types: two versions of a kind have one type where they differ in nothing else, and networks of
//! IPv4 have that of networks of IPv6.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

use crate::glob;

/// An address of IPv4. What else it must be is judged by reading it.
const IPV4: &str =
    r"^((([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])\.){3}([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5]))$";
/// The same of IPv6.
const IPV6: &str = "^[0-9a-fA-F:]*:[0-9a-fA-F:]*$";

/// What is said of one field.
enum Says {
    /// Items of the list are merged by their field of this name.
    MapBy(&'static str),
    /// Items of the list are there once.
    Set,
    /// The map is replaced as a whole.
    Atomic,
    /// Form of the text.
    Pattern(&'static str),
    /// Least number.
    Least(f64),
    /// Greatest number.
    Most(f64),
}

/// A version, a kind, a field, and what is said of it. The first three are shell patterns, the field's for each part of its path; `-`
/// are the items of a list, and `**` in front is any number of parts.
type NarrowingRule = (&'static str, &'static str, &'static str, Says);

const RULES: [NarrowingRule; 20] = [
    ("v1beta2", "Metal3Machine*", "**.hostSelector.matchExpressions", Says::MapBy("key")),
    ("v1beta2", "Metal3Machine*", "**.hostSelector.matchExpressions.-.values", Says::Set),
    ("v1beta2", "Metal3DataTemplate", "spec.metaData.indexes.-.step", Says::Least(1.0)),
    ("v1beta2", "Metal3DataTemplate", "spec.networkData.links.ethernets", Says::MapBy("id")),
    ("v1beta2", "Metal3DataTemplate", "spec.networkData.links.vlans", Says::MapBy("vlanID")),
    ("v1beta2", "Metal3DataTemplate", "spec.networkData.links.bonds", Says::MapBy("id")),
    ("v1beta2", "Metal3DataTemplate", "spec.networkData.links.bonds.-.bondLinks", Says::Set),
    ("v1beta2", "Metal3DataTemplate", "spec.networkData.links.bonds.-.parameters", Says::MapBy("name")),
    ("v1beta2", "Metal3DataTemplate", "spec.networkData.networks.*", Says::MapBy("id")),
    ("v1beta2", "Metal3DataTemplate", "spec.networkData.networks.*.-.routes", Says::MapBy("network")),
    ("v1beta2", "Metal3DataTemplate", "spec.networkData.networks.*.-.routes.-.services.dns", Says::Set),
    ("v1beta2", "Metal3DataTemplate", "spec.networkData.services.dns", Says::Set),
    ("v1beta1", "Metal3DataTemplate", "**.fromPoolRef", Says::Atomic),
    ("*", "Metal3DataTemplate", "spec.networkData.networks.ipv4*.-.routes.-.network", Says::Pattern(IPV4)),
    ("*", "Metal3DataTemplate", "spec.networkData.networks.ipv4*.-.routes.-.prefix", Says::Most(32.0)),
    ("*", "Metal3DataTemplate", "spec.networkData.networks.ipv4*.-.routes.-.gateway.string", Says::Pattern(IPV4)),
    ("*", "Metal3DataTemplate", "spec.networkData.networks.ipv4*.-.routes.-.services.dns.-", Says::Pattern(IPV4)),
    ("*", "Metal3DataTemplate", "spec.networkData.networks.ipv6*.-.routes.-.network", Says::Pattern(IPV6)),
    ("*", "Metal3DataTemplate", "spec.networkData.networks.ipv6*.-.routes.-.gateway.string", Says::Pattern(IPV6)),
    ("*", "Metal3DataTemplate", "spec.networkData.networks.ipv6*.-.routes.-.services.dns.-", Says::Pattern(IPV6)),
];

/// Says in the schema of a kind's version what its types do not.
pub(super) fn narrow(version: &str, kind: &str, schema: &mut JSONSchemaProps) {
    let rules = RULES.iter().filter(|(versions, kinds, ..)| is(versions, version) && is(kinds, kind));
    let rules: Vec<&NarrowingRule> = rules.collect();
    if !rules.is_empty() {
        each(schema, &mut Vec::new(), &mut |path, field| {
            for (.., says) in rules.iter().filter(|(_, _, at, _)| fits(at, path)) {
                say(says, field);
            }
        });
    }
}

fn is(pattern: &str, text: &str) -> bool {
    glob::matches(pattern.as_bytes(), text.as_bytes())
}

fn fits(at: &str, path: &[String]) -> bool {
    let parts: Vec<&str> = at.split('.').collect();
    let (parts, path) = match parts.split_first() {
        Some((&"**", rest)) => (rest, &path[path.len().saturating_sub(rest.len())..]),
        _ => (parts.as_slice(), path),
    };
    parts.len() == path.len() && parts.iter().zip(path).all(|(part, name)| is(part, name))
}

/// Visits a schema and all in it.
fn each(schema: &mut JSONSchemaProps, path: &mut Vec<String>, visit: &mut impl FnMut(&[String], &mut JSONSchemaProps)) {
    visit(path, schema);
    let mut inside = |name: &str, schema: &mut JSONSchemaProps| {
        path.push(name.to_owned());
        each(schema, path, visit);
        path.pop();
    };
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        inside("-", items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        inside("{}", values);
    }
    schema.properties.iter_mut().flatten().for_each(|(name, property)| inside(name, property));
}

fn say(says: &Says, field: &mut JSONSchemaProps) {
    match says {
        Says::MapBy(key) => {
            field.x_kubernetes_list_type = Some("map".into());
            field.x_kubernetes_list_map_keys = Some(vec![(*key).into()]);
        }
        Says::Set => field.x_kubernetes_list_type = Some("set".into()),
        Says::Atomic => field.x_kubernetes_map_type = Some("atomic".into()),
        Says::Pattern(pattern) => field.pattern = Some((*pattern).into()),
        Says::Least(least) => field.minimum = Some(*least),
        Says::Most(most) => field.maximum = Some(*most),
    }
}

#[cfg(test)]
mod tests {
    use super::super::definitions;
    use super::*;

    #[test]
    fn each_rule_says_something_of_each_kind_and_version_that_it_names() {
        let definitions = definitions::written();
        for (versions, kinds, at, _) in &RULES {
            let of_kind = definitions.values().filter(|one| is(kinds, &one.spec.names.kind));
            let schemas: Vec<_> = of_kind
                .flat_map(|one| &one.spec.versions)
                .filter(|version| is(versions, &version.name))
                .filter_map(|version| version.schema.clone()?.open_api_v3_schema)
                .collect();
            assert!(!schemas.is_empty(), "{kinds} {versions}");
            for mut schema in schemas {
                let mut met = 0;
                each(&mut schema, &mut Vec::new(), &mut |path, _| met += usize::from(fits(at, path)));
                assert!(met > 0, "{kinds} {versions} {at}");
            }
        }
    }

    #[test]
    fn paths_are_met_part_by_part() {
        let path = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
        for (at, field, wanted) in [
            ("spec.a", "spec.a", true),
            ("spec.*", "spec.a", true),
            ("spec.*", "spec.a.b", false),
            ("spec.ipv4*.-.b", "spec.ipv4DHCP.-.b", true),
            ("spec.ipv4*.-.b", "spec.ipv6.-.b", false),
            ("**.b", "spec.a.b", true),
            ("**.b.c", "c", false),
            ("**.b", "spec.b.a", false),
        ] {
            assert_eq!(fits(at, &path(field)), wanted, "{at} {field}");
        }
    }
}
