//! `slipway kubeconfig --merge`: into a kubeconfig that has others' clusters, and as root into somebody's home.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::needs;
use crate::process::Appliance;

/// Of nobody.
const NOBODY: u32 = 65534;

/// A configuration with its keys not made yet: no appliance ever ran.
fn prepared(folder: &Path) -> PathBuf {
    let file = folder.join("slipway.toml");
    fs::write(&file, format!("data_dir = {:?}\n[api]\nlisten = \"10.0.0.1:8443\"\n", folder.join("data"))).unwrap();
    file
}

fn kubeconfig(config: &Path, arguments: &[&str], environment: &[(&str, &Path)]) -> Result<String, String> {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_slipway"));
    command
        .arg("kubeconfig")
        .arg("--config")
        .arg(config)
        .args(arguments)
        .env_remove("KUBECONFIG")
        .env_remove("SUDO_UID");
    let output = command.envs(environment.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.stdout.is_empty(), "keys go into the file only");
    if output.status.success() { Ok(said) } else { Err(said) }
}

#[tokio::test]
async fn it_works_beside_what_was_there() {
    slipway::appliance::install_tls_provider();
    let appliance = Appliance::new().await;
    appliance.client().await;
    let home = tempfile::tempdir().unwrap();
    let config = appliance.folder().join("slipway.toml");
    let file = home.path().join(".kube/config");
    let said = kubeconfig(&config, &["--merge"], &[("HOME", home.path())]).unwrap();
    assert!(said.contains("the current context is slipway"), "{said}");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let version = async |context: Option<&str>| {
        let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
        let read = Kubeconfig::read_from(&file).unwrap();
        let config = Config::from_custom_kubeconfig(read, &options).await.unwrap();
        Client::try_from(config).unwrap().apiserver_version().await
    };
    version(None).await.unwrap();

    // Another cluster is the current one.
    let other = "apiVersion: v1\nkind: Config\ncurrent-context: prod\nclusters:\n- name: prod\n  cluster: {server: 'https://prod:6443'}\n\
                 contexts:\n- name: prod\n  context: {cluster: prod, user: me}\nusers:\n- name: me\n  user: {exec: {apiVersion: v1, command: login, args: ['-x', 'yes']}}\n";
    fs::write(&file, other).unwrap();
    let said = kubeconfig(&config, &["--merge", "--context", "edge"], &[("HOME", home.path())]).unwrap();
    assert!(said.contains("the current one stays prod"), "{said}");
    version(Some("edge")).await.unwrap();
    let read = Kubeconfig::read_from(&file).unwrap();
    assert_eq!((read.clusters.len(), read.current_context.as_deref()), (2, Some("prod")));
    let exec = read.auth_infos[0].auth_info.as_ref().unwrap().exec.as_ref().unwrap();
    assert_eq!(exec.args.as_deref(), Some(&["-x".to_owned(), "yes".to_owned()][..]));
    kubeconfig(&config, &["--merge", "--context", "edge", "--set-current"], &[("HOME", home.path())]).unwrap();
    version(None).await.unwrap();
}

#[test]
fn what_cannot_be_merged_is_left_as_it_is_and_no_certificate_is_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let config = prepared(folder.path());
    let file = folder.path().join("mine");
    let name = file.to_str().unwrap();
    for text in ["- a list\n", "clusters: [{name: slipway, cluster: {server: 'https://elsewhere'}}]\n"] {
        fs::write(&file, text).unwrap();
        let said = kubeconfig(&config, &["--merge", name, "--revoke-all"], &[]).unwrap_err();
        assert!(said.contains("no kubeconfig") || said.contains("stands for https://elsewhere"), "{said}");
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
        assert!(!folder.path().join("data").exists(), "no key was made for it: {said}");
    }
    // $KUBECONFIG names the file, and a lock of kubectl's is heeded.
    fs::remove_file(&file).unwrap();
    fs::write(folder.path().join("mine.lock"), "").unwrap();
    let said = kubeconfig(&config, &["--merge"], &[("KUBECONFIG", &file)]).unwrap_err();
    assert!(said.contains("mine.lock is there"), "{said}");
    fs::remove_file(folder.path().join("mine.lock")).unwrap();
    kubeconfig(&config, &["--merge"], &[("KUBECONFIG", &file)]).unwrap();
    assert!(file.exists());
}

#[test]
fn root_writes_into_a_home_with_its_owners_rights_only() {
    if !needs::root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let config = prepared(folder.path());
    let home = folder.path().join("home");
    fs::create_dir(&home).unwrap();
    chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    let file = home.join(".kube/config");
    kubeconfig(&config, &["--merge", file.to_str().unwrap()], &[]).unwrap();
    for made in [home.join(".kube"), file.clone()] {
        assert_eq!(fs::metadata(&made).unwrap().uid(), NOBODY, "{}", made.display());
    }
    // He leads root to a file of root's.
    let secret = folder.path().join("secret");
    fs::write(&secret, "current-context: theirs\n").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    fs::remove_file(&file).unwrap();
    symlink(&secret, &file).unwrap();
    std::os::unix::fs::lchown(&file, Some(NOBODY), Some(NOBODY)).unwrap();
    let said = kubeconfig(&config, &["--merge", file.to_str().unwrap()], &[]).unwrap_err();
    assert!(said.contains("Permission denied"), "{said}");
    assert_eq!(fs::read_to_string(&secret).unwrap(), "current-context: theirs\n");
    // The keys are root's affair all the same: they were made, and belong to who may use the data folder.
    assert_eq!(
        fs::metadata(folder.path().join("data/pki")).unwrap().uid(),
        fs::metadata(folder.path().join("data")).unwrap().uid()
    );
}

#[test]
fn root_reaches_in_the_data_folder_what_its_owner_could_reach() {
    if !needs::root() {
        return;
    }
    for link in ["data/pki", "data/pki/.lock"] {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let config = prepared(folder.path());
        let roots = folder.path().join("roots");
        match link {
            "data/pki" => fs::create_dir(&roots).unwrap(),
            _ => fs::write(&roots, "kept").unwrap(),
        }
        fs::set_permissions(&roots, fs::Permissions::from_mode(0o755)).unwrap();
        // Whoever has the service's rights leads root to what is root's.
        let link = folder.path().join(link);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(&roots, &link).unwrap();
        for own in [folder.path().join("data"), folder.path().join("data/pki"), link.clone()] {
            if own.symlink_metadata().is_ok() {
                std::os::unix::fs::lchown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        for arguments in [&[][..], &["--revoke-all"]] {
            let said = kubeconfig(&config, arguments, &[]).unwrap_err();
            assert!(said.contains("roots") || said.contains("pki"), "{said}");
        }
        let about = fs::metadata(&roots).unwrap();
        assert_eq!((about.uid(), about.permissions().mode() & 0o777), (0, 0o755), "{}", link.display());
        match about.is_dir() {
            true => assert_eq!(fs::read_dir(&roots).unwrap().count(), 0, "nothing was made there"),
            false => assert_eq!(fs::read_to_string(&roots).unwrap(), "kept"),
        }
    }
}
