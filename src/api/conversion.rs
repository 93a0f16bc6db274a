//! Changes of shape between the versions of a kind. Pure: JSON in, JSON out, and what does not fit is left as it is.

use serde_json::{Map, Value};

/// From one shape to the other, as well as it goes. `apiVersion` included.
pub type Convert = fn(&Value) -> Value;

/// Where a field is in an older version and where it is in the newer one; names joined by dots.
pub type Moves = &'static [(&'static str, &'static str)];

/// The object in the newer version. Moves are made in order, for one may make room for the next.
pub(super) fn newer(object: &Value, api_version: &str, moves: Moves) -> Value {
    let mut object = in_version(object, api_version);
    moves.iter().for_each(|(old, new)| relocate(&mut object, old, new));
    object
}

/// The object in the older version.
pub(super) fn older(object: &Value, api_version: &str, moves: Moves) -> Value {
    let mut object = in_version(object, api_version);
    moves.iter().rev().for_each(|(old, new)| relocate(&mut object, new, old));
    object
}

fn in_version(object: &Value, api_version: &str) -> Value {
    let mut object = object.clone();
    if let Value::Object(map) = &mut object {
        map.insert("apiVersion".into(), api_version.into());
    }
    object
}

/// Moves a field. Objects below `spec` and `status` that have nothing left go with it.
fn relocate(root: &mut Value, from: &str, to: &str) {
    if at(root, from).is_none() || !is_free(root, to) {
        return;
    }
    let Some(value) = take(root, from) else { return };
    let mut place = root;
    for name in to.split('.') {
        let Value::Object(map) = place else { return };
        place = map.entry(name).or_insert_with(|| Value::Object(Map::new()));
    }
    *place = value;
}

/// Whether a field is not there and could be.
fn is_free(root: &Value, path: &str) -> bool {
    let mut place = root;
    for name in path.split('.') {
        match place {
            Value::Object(map) => match map.get(name) {
                Some(next) => place = next,
                None => return true,
            },
            _ => return false,
        }
    }
    false
}

fn take(object: &mut Value, path: &str) -> Option<Value> {
    let map = object.as_object_mut()?;
    match path.split_once('.') {
        None => map.remove(path),
        Some((name, rest)) => {
            let inner = map.get_mut(name)?;
            let taken = take(inner, rest);
            if taken.is_some() && !matches!(name, "spec" | "status") && *inner == Value::Object(Map::new()) {
                map.remove(name);
            }
            taken
        }
    }
}

/// The value of a field.
pub(super) fn at<'v>(root: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(root, |place, name| place.get(name))
}

/// Replaces the value of a field by another when there is one.
pub(super) fn alter(root: &mut Value, path: &str, other: impl FnOnce(&Value) -> Option<Value>) {
    let place = path.split('.').try_fold(root, |place, name| place.get_mut(name));
    if let Some(place) = place
        && let Some(value) = other(place)
    {
        *place = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_move_there_and_back() {
        let moves: Moves = &[
            ("status.conditions", "status.deprecated.v1beta1.conditions"),
            ("status.new.conditions", "status.conditions"),
        ];
        let old = json!({"apiVersion": "g/v1", "status": {"conditions": [1], "new": {"conditions": [2]}, "x": 1}});
        let new = json!({"apiVersion": "g/v2", "status": {"conditions": [2], "deprecated": {"v1beta1": {"conditions": [1]}}, "x": 1}});
        assert_eq!(newer(&old, "g/v2", moves), new);
        assert_eq!(older(&new, "g/v1", moves), old);
    }

    #[test]
    fn what_has_no_room_stays() {
        let moves: Moves = &[("status.ready", "status.initialization.provisioned")];
        for object in [
            json!({"apiVersion": "v", "status": {"ready": true, "initialization": 1}}),
            json!({"apiVersion": "v", "status": {"ready": true, "initialization": {"provisioned": false}}}),
            json!({"apiVersion": "v", "status": "ready"}),
            json!({"apiVersion": "v"}),
        ] {
            assert_eq!(newer(&object, "v", moves), object);
        }
        assert_eq!(newer(&json!([]), "v", moves), json!([]));
    }
}
