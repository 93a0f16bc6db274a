//! Between the versions of `ipam.cluster.x-k8s.io`. Pure.

use serde_json::Value;

use crate::api::cluster::convert::CONDITIONS;
use crate::api::conversion::{Moves, newer, older};

const ALPHA: &str = "ipam.cluster.x-k8s.io/v1alpha1";
const OLD: &str = "ipam.cluster.x-k8s.io/v1beta1";
const NEW: &str = "ipam.cluster.x-k8s.io/v1beta2";

const CLAIM: Moves = &[CONDITIONS[0], CONDITIONS[3]];

/// An IPAddressClaim of v1beta1 or v1alpha1 in v1beta2.
pub fn claim_to_storage(old: &Value) -> Value {
    newer(old, NEW, CLAIM)
}

/// An IPAddressClaim of v1beta2 in v1beta1.
pub fn claim_from_storage(new: &Value) -> Value {
    older(new, OLD, CLAIM)
}

/// An IPAddressClaim of v1beta2 in v1alpha1, which knows neither clusters nor the conditions of today.
pub fn claim_alpha_from_storage(new: &Value) -> Value {
    let mut alpha = older(new, ALPHA, CLAIM);
    for (part, field) in [("spec", "clusterName"), ("status", "v1beta2")] {
        if let Some(Value::Object(part)) = alpha.get_mut(part) {
            part.remove(field);
        }
    }
    alpha
}

/// An IPAddress of v1beta1 or v1alpha1 in v1beta2.
pub fn address_to_storage(old: &Value) -> Value {
    newer(old, NEW, &[])
}

/// An IPAddress of v1beta2 in v1beta1.
pub fn address_from_storage(new: &Value) -> Value {
    older(new, OLD, &[])
}

/// An IPAddress of v1beta2 in v1alpha1.
pub fn address_alpha_from_storage(new: &Value) -> Value {
    older(new, ALPHA, &[])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_claim_in_each_version() {
        let pool = json!({"apiGroup": "ipam.metal3.io", "kind": "IPPool", "name": "p"});
        let old = json!({"apiVersion": OLD, "spec": {"clusterName": "c", "poolRef": pool}, "status": {
            "addressRef": {"name": "a"}, "conditions": [{"type": "Ready"}], "v1beta2": {"conditions": [{"type": "Paused"}]}}});
        let new = json!({"apiVersion": NEW, "spec": {"clusterName": "c", "poolRef": pool}, "status": {
            "addressRef": {"name": "a"}, "conditions": [{"type": "Paused"}],
            "deprecated": {"v1beta1": {"conditions": [{"type": "Ready"}]}}}});
        let alpha = json!({"apiVersion": ALPHA, "spec": {"poolRef": pool}, "status": {
            "addressRef": {"name": "a"}, "conditions": [{"type": "Ready"}]}});
        assert_eq!(claim_to_storage(&old), new);
        assert_eq!(claim_from_storage(&new), old);
        assert_eq!(claim_alpha_from_storage(&new), alpha);
        assert_eq!(claim_to_storage(&alpha)["status"]["deprecated"], new["status"]["deprecated"]);
    }

    #[test]
    fn an_address_is_the_same_in_each_version() {
        let of = |version: &str| json!({"apiVersion": version, "spec": {"address": "10.0.0.1", "prefix": 24}});
        assert_eq!((address_to_storage(&of(OLD)), address_to_storage(&of(ALPHA))), (of(NEW), of(NEW)));
        assert_eq!((address_from_storage(&of(NEW)), address_alpha_from_storage(&of(NEW))), (of(OLD), of(ALPHA)));
    }
}
