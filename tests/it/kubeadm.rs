//! What the real kubeadm says of its configuration documents.

use std::io::Write;
use std::process::Command;

use crate::needs;

/// Whether kubeadm takes these documents, or what it says against them. `None` without a kubeadm.
///
/// It is strict: a field that a version does not know is a fault. Asks no cluster and no network, if a
/// `ClusterConfiguration` says which version of Kubernetes it is for.
pub fn judge(documents: &str) -> Option<Result<(), String>> {
    let kubeadm = needs::kubeadm()?;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(documents.as_bytes()).unwrap();
    let said = Command::new(kubeadm).args(["config", "validate", "--config"]).arg(file.path()).output().unwrap();
    let words = String::from_utf8_lossy(&said.stderr).into_owned();
    Some(if said.status.success() { Ok(()) } else { Err(words) })
}

/// Documents, and what kubeadm says against them; nothing when it takes them.
const CASES: [(&str, &str); 5] = [
    (
        "apiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration\nkubernetesVersion: v1.34.4\n\
         apiServer: {extraArgs: {profiling: \"false\"}}\n",
        "",
    ),
    (
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.34.4\n\
         apiServer: {extraArgs: [{name: profiling, value: \"false\"}]}\n",
        "",
    ),
    // The arguments' shape is what differs most between the two.
    (
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.34.4\n\
         apiServer: {extraArgs: {profiling: \"false\"}}\n",
        "apiServer.extraArgs",
    ),
    (
        "apiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration\nkubernetesVersion: v1.34.4\napiServerr: {}\n",
        "unknown field \"apiServerr\"",
    ),
    (
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\n\
         discovery: {bootstrapToken: {token: short, apiServerEndpoint: \"192.0.2.1:6443\", unsafeSkipCAVerification: true}}\n",
        "the bootstrap token is invalid",
    ),
];

#[test]
fn kubeadm_takes_what_is_right_and_says_what_is_wrong() {
    for (documents, against) in CASES {
        let Some(said) = judge(documents) else { return };
        let words = said.err().unwrap_or_default();
        let as_wanted = if against.is_empty() { words.is_empty() } else { words.contains(against) };
        assert!(as_wanted, "{documents}\nkubeadm says {words:?}, not {against:?}");
    }
}
