//! Checkouts and environments, as they are found.

use super::*;

/// Packages of an environment.
fn packages(place: &Place, names: &[&str]) {
    for name in names {
        fs::create_dir_all(place.environment().join(format!("lib/python3.11/site-packages/{name}.dist-info"))).unwrap();
    }
}

#[test]
fn what_fits_is_named_with_its_versions() {
    let place = Place::with_program("");
    packages(&place, &["ansible_core-2.18.19", "ansible-11.13.0", "netaddr-1.3.0"]);
    fs::write(place.environment().join("pyvenv.cfg"), "home = /usr/bin\nversion = 3.11.7\n").unwrap();
    fs::write(place.tree().join("requirements.txt"), "ansible==11.13.0\nnetaddr==1.3.0\n").unwrap();
    fs::write(place.tree().join("meta/runtime.yml"), "requires_ansible: '>=2.18.0,<2.19.0'\n").unwrap();
    let found = place.installation().inspect().unwrap();
    assert_eq!(
        (found.kubespray.as_str(), found.ansible_core.as_str(), found.python.as_str()),
        ("2.99.0", "2.18.19", "3.11.7")
    );
    assert_eq!(found.wanted, ">=2.18.0,<2.19.0");
    assert_eq!(found.packages.keys().collect::<Vec<_>>(), ["ansible", "netaddr"]);
}

#[test]
fn each_fault_has_its_line_with_file_and_versions() {
    type Change = fn(&Place);
    let rows: &[(&str, Change)] = &[
        ("is no kubespray: cluster.yml", |place| fs::remove_file(place.tree().join("cluster.yml")).unwrap()),
        ("is no kubespray: ansible.cfg", |place| fs::remove_file(place.tree().join("ansible.cfg")).unwrap()),
        ("has ansible-core 2.18.19, kubespray wants >=2.19", |place| {
            fs::write(place.tree().join("meta/runtime.yml"), "requires_ansible: '>=2.19'\n").unwrap();
        }),
        ("kubespray wants >=2.5,<2.17.0", |place| {
            fs::create_dir_all(place.tree().join("playbooks")).unwrap();
            let play = "- vars: {minimal_ansible_version: 2.5, maximal_ansible_version: 2.17.0}\n";
            fs::write(place.tree().join("playbooks/ansible_version.yml"), play).unwrap();
        }),
        ("does not say which ansible-core it wants", |place| {
            fs::write(place.tree().join("meta/runtime.yml"), "nothing: here\n").unwrap();
        }),
        ("has no netaddr, kubespray wants ==1.3.0", |place| {
            fs::write(place.tree().join("requirements.txt"), "netaddr==1.3.0\n").unwrap();
        }),
        ("has ansible-core 2.18.19, kubespray wants ==2.18.0: python3 -m venv", |place| {
            fs::write(place.tree().join("requirements.txt"), "ansible_core==2.18.0\n").unwrap();
        }),
        ("is no virtual environment with Ansible: bin/ansible-playbook", |place| {
            fs::remove_file(place.environment().join("bin/ansible-playbook")).unwrap();
        }),
        ("has no packages", |place| fs::remove_dir_all(place.environment().join("lib")).unwrap()),
        ("may be written by others", |place| {
            fs::set_permissions(place.tree(), fs::Permissions::from_mode(0o777)).unwrap();
        }),
        ("cluster.yml may be written by others", |place| {
            fs::set_permissions(place.tree().join("cluster.yml"), fs::Permissions::from_mode(0o664)).unwrap();
        }),
        ("bin/ansible-playbook may be written by others", |place| {
            let file = place.environment().join("bin/ansible-playbook");
            fs::set_permissions(file, fs::Permissions::from_mode(0o775)).unwrap();
        }),
        ("may be written by others", |place| {
            fs::set_permissions(place.top.path(), fs::Permissions::from_mode(0o777)).unwrap();
        }),
        ("is no program", |place| {
            let file = place.environment().join("bin/python3");
            fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
        }),
    ];
    for (wanted, change) in rows {
        let place = Place::with_program("");
        packages(&place, &["ansible_core-2.18.19"]);
        place.installation().inspect().unwrap();
        change(&place);
        let faults = place.installation().inspect().unwrap_err();
        assert!(faults.iter().any(|fault| fault.contains(wanted)), "{wanted}: {faults:?}");
        assert!(faults.iter().all(|fault| fault.starts_with('/') && !fault.contains('\n')), "{faults:?}");
    }
}
