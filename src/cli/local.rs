//! Requests to the appliance on this box.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};
use nix::unistd::{Gid, Uid, getegid, geteuid, getgroups, setegid, seteuid, setgroups};

use crate::appliance::{self, local_kubeconfig};
use crate::config::Config;
use crate::engine;
use crate::pki::users::{self, FileOwner};

/// The credentials for the objects of the appliance on this box: its administrator's, or those it has itself for the
/// API server that keeps them.
pub(super) fn credentials(config: &Config) -> anyhow::Result<(Kubeconfig, KubeConfigOptions)> {
    match engine::kubeconfig(&config.engine) {
        Some(engine) => Ok(engine?),
        None => {
            let made = in_data_folder(config, || local_kubeconfig(config))??;
            Ok((Kubeconfig::from_yaml(&made)?, KubeConfigOptions::default()))
        }
    }
}

/// Does this with the rights of whom the data folder belongs to, where root asks: who has only the service's rights leads root
/// nowhere by a link in that folder. One that is not there yet is root's to make, and is given away then.
///
/// # Errors
///
/// As [`as_user`].
pub(super) fn in_data_folder<T>(config: &Config, work: impl FnOnce() -> T) -> anyhow::Result<T> {
    let owner = config.data_dir.0.exists().then(|| users::service_of(&config.data_dir.0)).flatten();
    as_user(owner, work)
}

/// Who else than root has a part of the way to a folder, for root: the service, most often. Links that they make lead no further
/// than they may go themselves.
///
/// # Errors
///
/// When the folder's place cannot be told.
pub(super) fn owner_on_the_way(folder: &Path) -> anyhow::Result<Option<FileOwner>> {
    let folder = std::path::absolute(folder)?;
    let mut steps: Vec<&Path> = folder.ancestors().collect();
    steps.reverse();
    let me = geteuid().as_raw();
    let owner = |at: &Path| {
        let about = fs::symlink_metadata(at).ok()?;
        users::heir(me, Some(FileOwner { user: about.uid(), group: about.gid() }), None)
    };
    Ok(steps.into_iter().find_map(owner))
}

/// Does this as another user, if one is named; then this process is who it was. Only root can, with one thread.
///
/// # Errors
///
/// When the kernel refuses the change, or the way back.
pub(super) fn as_user<T>(owner: Option<FileOwner>, work: impl FnOnce() -> T) -> anyhow::Result<T> {
    let Some(owner) = owner else { return Ok(work()) };
    let (user, group) = (Uid::from_raw(owner.user), Gid::from_raw(owner.group));
    let (me, mine, others) = (geteuid(), getegid(), getgroups()?);
    let become_it = || setgroups(&[group]).and_then(|()| setegid(group)).and_then(|()| seteuid(user));
    let become_me = || seteuid(me).and_then(|()| setegid(mine)).and_then(|()| setgroups(&others));
    become_it().with_context(|| format!("cannot act as {}", users::name(owner.user)))?;
    let done = work();
    become_me().context("cannot become root again")?;
    Ok(done)
}

/// Runs a client command.
pub(super) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    appliance::install_tls_provider();
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(Box::pin(work))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_writes_as_whoever_has_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        if !geteuid().is_root() {
            assert_eq!(owner_on_the_way(&data.join("boot")).unwrap(), None, "only root can be another");
            return;
        }
        assert_eq!(owner_on_the_way(&data.join("boot")).unwrap(), None);
        std::os::unix::fs::chown(&data, Some(61515), Some(61515)).unwrap();
        // A link that leads to what is root's, in a folder that is the service's.
        std::os::unix::fs::symlink("/etc", data.join("boot")).unwrap();
        let service = Some(FileOwner { user: 61515, group: 61515 });
        assert_eq!(owner_on_the_way(&data.join("boot")).unwrap(), service);
        assert_eq!(owner_on_the_way(&data.join("boot/a")).unwrap(), service);
        assert_eq!(owner_on_the_way(&data).unwrap(), service);
    }
}
