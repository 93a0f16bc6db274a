//! Whether it is a good moment for another worker: while the control plane is made or upgraded it is not, nor for one that is newer
//! than its control plane. Pure.

use serde_json::Value;

use crate::api::cluster::v1beta2::MachineSet;
use crate::cluster::contract::KubeVersion;
use kube::ResourceExt;

/// Annotation of a set: the checks that are left out, by their names, or `All`.
const SKIP: &str = "machineset.cluster.x-k8s.io/skip-preflight-checks";
/// How many minor versions a kubelet may be behind.
const BEHIND: u32 = 3;

/// What speaks against another machine of the set, given the control plane's object.
pub(super) fn objection(set: &MachineSet, control_plane: Option<&Value>) -> Option<String> {
    let plane = control_plane?;
    let text = |path: &str| plane.pointer(path).and_then(Value::as_str).filter(|text| text.len() <= 256);
    // Control planes without a version of their own are nobody's to judge.
    let wanted = text("/spec/version")?;
    let skipped = set.annotations().get(SKIP).map(String::as_str).unwrap_or_default();
    let asks = |check: &str| !skipped.split(',').map(str::trim).any(|one| one == check || one == "All");
    if asks("ControlPlaneIsStable") {
        match text("/status/version") {
            None => return Some("the control plane is being made (ControlPlaneIsStable)".to_owned()),
            Some(is) if is != wanted => {
                return Some(format!("the control plane goes from {is} to {wanted} (ControlPlaneIsStable)"));
            }
            Some(_) => {}
        }
    }
    let own = set.spec.template.spec.version.as_deref()?;
    let (Ok(plane), Ok(version)) = (wanted.parse::<KubeVersion>(), own.parse::<KubeVersion>()) else { return None };
    let newer = (version.major, version.minor) > (plane.major, plane.minor);
    let too_old = version.major != plane.major || version.minor + BEHIND < plane.minor;
    if asks("KubernetesVersionSkew") && (newer || too_old) {
        return Some(format!("a machine of {own} does not fit a control plane of {wanted} (KubernetesVersionSkew)"));
    }
    let bootstrap = set.spec.template.spec.bootstrap.config_ref.as_ref();
    let kubeadm = bootstrap.is_some_and(|reference| reference.kind == "KubeadmConfigTemplate");
    if asks("KubeadmVersionSkew") && kubeadm && (version.major, version.minor) != (plane.major, plane.minor) {
        return Some(format!("kubeadm of {own} cannot join a control plane of {wanted} (KubeadmVersionSkew)"));
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::cluster::v1beta2::ContractReference;

    fn set(version: &str, kubeadm: bool, skip: Option<&str>) -> MachineSet {
        let mut set = MachineSet::new("s", Default::default());
        set.spec.template.spec.version = Some(version.into());
        if kubeadm {
            let reference = ContractReference { kind: "KubeadmConfigTemplate".into(), ..ContractReference::default() };
            set.spec.template.spec.bootstrap.config_ref = Some(reference);
        }
        set.metadata.annotations = skip.map(|skip| [(SKIP.to_owned(), skip.to_owned())].into());
        set
    }

    #[test]
    fn workers_wait_for_a_control_plane_that_fits() {
        let plane =
            |spec: &str, status: Option<&str>| json!({"spec": {"version": spec}, "status": {"version": status}});
        let stable = plane("v1.35.0", Some("v1.35.0"));
        let rows = [
            (set("v1.35.0", true, None), stable.clone(), None),
            (set("v1.35.0", true, None), json!({"spec": {}}), None),
            (set("v1.35.0", true, None), plane("v1.35.0", None), Some("being made")),
            (set("v1.35.0", true, None), plane("v1.35.0", Some("v1.34.0")), Some("from v1.34.0 to v1.35.0")),
            (set("v1.35.0", true, Some("ControlPlaneIsStable")), plane("v1.35.0", None), None),
            (set("v1.36.0", false, None), stable.clone(), Some("KubernetesVersionSkew")),
            (set("v1.32.0", false, None), stable.clone(), None),
            (set("v1.31.0", false, None), stable.clone(), Some("KubernetesVersionSkew")),
            (set("v1.34.0", true, None), stable.clone(), Some("KubeadmVersionSkew")),
            (set("v1.34.0", true, Some("All")), stable.clone(), None),
            (set("latest", true, None), stable, None),
        ];
        for (set, plane, wanted) in rows {
            let objection = objection(&set, Some(&plane));
            match wanted {
                None => assert_eq!(objection, None),
                Some(wanted) => {
                    assert!(objection.as_ref().is_some_and(|reason| reason.contains(wanted)), "{objection:?}")
                }
            }
        }
        assert_eq!(objection(&set("v1.35.0", true, None), None), None);
    }
}
