//! Runs of the real ansible-core, of small playbooks in a checkout like kubespray's.

use std::os::unix::fs::symlink;

use serde_json::json;

use super::super::confine::is_confined;
use super::*;
use crate::needs;

/// With the real Ansible; `None` where there is none.
fn place(playbook: &str) -> Option<Place> {
    let environment = needs::ansible()?;
    let place = Place::with_tree(playbook);
    symlink(environment, place.environment()).unwrap();
    Some(place)
}

async fn run(place: &Place, request: &RunRequest) -> RunStatus {
    place.runs().start(&place.installation(), request).await.unwrap();
    place.to_its_end(&request.id).await
}

fn log(place: &Place, id: &RunId) -> String {
    String::from_utf8(place.runs().log(id, 0).unwrap().bytes).unwrap()
}

fn failure(status: &RunStatus) -> &str {
    match &status.verdict {
        Some(RunVerdict::Failed(reason)) => reason,
        _ => panic!("{status:?}"),
    }
}

#[tokio::test]
async fn a_playbook_succeeds_on_every_host() {
    let Some(place) = place(
        "- name: first
  hosts: all
  gather_facts: false
  tasks:
    - {name: nothing, ansible.builtin.command: 'true', changed_when: false}
    - {name: something, ansible.builtin.copy: {content: '{{ inventory_hostname }}', dest: '{{ artifacts_dir }}/{{ inventory_hostname }}', mode: '0600'}}
    - {name: not here, ansible.builtin.command: 'false', when: false}
    - {name: does not matter, ansible.builtin.command: 'false', changed_when: false, ignore_errors: true}
- name: of a group with a hyphen
  hosts: kube-node
  gather_facts: false
  tasks:
    - {name: by its old name, ansible.builtin.assert: {that: \"ansible_host == '127.0.0.9'\"}}
- name: second
  hosts: one
  gather_facts: false
  tasks:
    - block: [{name: breaks, ansible.builtin.command: 'false'}]
      rescue: [{name: mends, ansible.builtin.command: 'true', changed_when: false}]
    - {name: kubeconfig, ansible.builtin.copy: {content: 'kind: Config', dest: '{{ artifacts_dir }}/admin.conf', mode: '0600'}}
",
    ) else {
        return;
    };
    let request = RunRequest {
        // The form of inventories that BPA wrote.
        inventory: "[all]\none ansible_connection=local ansible_become=false\ntwo ansible_ssh_host=127.0.0.9 ansible_connection=local ansible_become=false\n[kube-node]\ntwo\n".into(),
        expected: vec!["one".into(), "two".into()],
        ..request("good")
    };
    let mut seen = Vec::new();
    place.runs().start(&place.installation(), &request).await.unwrap();
    let follow = async { place.runs().follow(&request.id, |status| seen.push(status.clone())).await };
    let status = tokio::time::timeout(DEADLINE, follow).await.unwrap().unwrap();
    assert_eq!(status.verdict, Some(RunVerdict::Succeeded), "{status:?}\n{}", log(&place, &request.id));
    let progress = &status.progress;
    assert_eq!((progress.plays, progress.plays_begun, progress.percent()), (3, 3, Some(100)));
    let host = |name: &str| (progress.hosts[name].ok, progress.hosts[name].changed, progress.hosts[name].failures);
    // Ansible counts what is ignored as good, and what is rescued as neither.
    assert_eq!((host("one"), host("two")), ((5, 2, 0), (4, 1, 0)), "{progress:?}");
    assert!(progress.failures.iter().any(|failure| failure.task == "breaks" && failure.host == "one"), "{progress:?}");
    assert_eq!(progress.not_understood, 0, "{progress:?}");
    assert!(seen.first().is_some_and(|first| first.verdict.is_none()), "{seen:?}");
    use secrecy::ExposeSecret;
    let kubeconfig = place.runs().kubeconfig(&request.id).unwrap().unwrap();
    assert_eq!(kubeconfig.expose_secret(), "kind: Config");
    assert!(log(&place, &request.id).contains("PLAY RECAP"));
    place.assert_tidy(&request.id);
    // What would lie there in plain is removed when somebody keeps it.
    let left =
        || ["artifacts/admin.conf", "credentials"].map(|name| place.runs().folder(&request.id).join(name).exists());
    assert_eq!(left(), [true, true]);
    place.runs().forget_secrets(&request.id, false).unwrap();
    assert_eq!(left(), [true, false]);
    for _ in 0..2 {
        place.runs().forget_secrets(&request.id, true).unwrap();
        assert_eq!(left(), [false, false]);
    }
}

#[tokio::test]
async fn a_reset_is_confirmed_and_the_sites_mirrors_are_what_a_playbook_sees() {
    let Some(place) = place(
        "- hosts: all
  gather_facts: false
  tasks:
    - {name: confirmed, ansible.builtin.assert: {that: \"reset_confirmation | bool\"}}
    - name: mirrors
      ansible.builtin.assert:
        that:
          - \"github_url == 'http://192.0.2.1/packages/ks/github.com'\"
          - \"dl_k8s_io_url == 'http://192.0.2.1/packages/ks/dl.k8s.io'\"
          - \"containerd_registries_mirrors[0].mirrors[0].host == 'http://192.0.2.1'\"
          - \"containerd_registries_mirrors[0].mirrors[0].skip_verify is boolean\"
",
    ) else {
        return;
    };
    let mirrors =
        Mirrors { registry: Some("http://192.0.2.1".into()), files: Some("http://192.0.2.1/packages/ks".into()) };
    let installation = Installation { mirrors, ..place.installation() };
    let request = RunRequest { playbook: Playbook::Reset, ..request("reset") };
    place.runs().start(&installation, &request).await.unwrap();
    let status = place.to_its_end(&request.id).await;
    assert_eq!(status.verdict, Some(RunVerdict::Succeeded), "{status:?}\n{}", log(&place, &request.id));
}

#[tokio::test]
async fn what_failed_on_which_task_of_which_host_is_told_without_secrets() {
    let Some(place) = place(
        "- hosts: all
  gather_facts: false
  tasks:
    - {name: open failure, ansible.builtin.fail: {msg: 'bad thing with {{ cluster_name }} [31m'}, when: inventory_hostname == 'one'}
    - {name: hidden failure, ansible.builtin.fail: {msg: 'the password is swordfish'}, no_log: true, when: inventory_hostname == 'two'}
    - name: hidden loop
      ansible.builtin.fail: {msg: 'the password is {{ item }}'}
      loop: [swordfish]
      no_log: true
      when: inventory_hostname == 'three'
",
    ) else {
        return;
    };
    let hosts = ["one", "two", "three"];
    let lines = hosts
        .iter()
        .map(|host| format!("    {host}: {{ansible_connection: local, ansible_become: false}}\n"))
        .collect::<String>();
    let vars = json!({"cluster_name": "hunter22-and-more"});
    let request = RunRequest {
        inventory: format!("all:\n  hosts:\n{lines}"),
        expected: Vec::new(),
        vars: RunVars::of_administrator(vars.as_object().unwrap().clone()).unwrap(),
        secrets: vec!["hunter22-and-more".into()],
        ..request("bad")
    };
    let status = run(&place, &request).await;
    assert!(failure(&status).starts_with("failed on 3 of 3 hosts; first "), "{status:?}");
    let of = |host: &str| status.progress.failures.iter().find(|failure| failure.host == host).unwrap();
    assert_eq!((of("one").task.as_str(), of("one").message.as_str()), ("open failure", "bad thing with *** [31m"));
    assert_eq!((of("two").task.as_str(), of("two").message.as_str()), ("hidden failure", "(hidden by no_log)"));
    assert_eq!((of("three").task.as_str(), of("three").message.as_str()), ("hidden loop", "(hidden by no_log)"));
    let folder = place.runs().folder(&request.id);
    let events = fs::read_to_string(folder.join("events.jsonl")).unwrap();
    for text in [events, log(&place, &request.id)] {
        assert!(!text.contains("swordfish") && !text.contains("hunter22"), "{text}");
    }
}

#[tokio::test]
async fn a_host_that_does_not_answer_is_unreachable_in_time() {
    let Some(place) =
        place("- hosts: all\n  gather_facts: false\n  tasks: [{name: reach, ansible.builtin.raw: 'true'}]\n")
    else {
        return;
    };
    if !needs::program("ssh") {
        return;
    }
    // Takes connections and never says a word; the other one takes none, and is not asked a hundred times, as kubespray's settings have it.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let request = RunRequest {
        inventory: format!(
            "all:\n  hosts:\n    one: {{ansible_host: 127.0.0.1, ansible_port: {port}}}\n    two: {{ansible_host: 127.0.0.1, ansible_port: {closed}}}\n"
        ),
        bounds: RunLimits { answer: Duration::from_secs(5), ..RunLimits::default() },
        expected: vec!["one".into(), "two".into()],
        ..request("silent")
    };
    let status = run(&place, &request).await;
    assert!(failure(&status).contains("failed on 2 of 2 hosts; first "), "{status:?}");
    assert!(status.progress.failures.iter().all(|failure| failure.unreachable), "{status:?}");
    place.assert_tidy(&request.id);
}

#[tokio::test]
async fn no_host_and_a_broken_playbook_are_failures() {
    let Some(nobody) = place("- hosts: nowhere\n  gather_facts: false\n  tasks: [{ansible.builtin.debug: }]\n") else {
        return;
    };
    let status = run(&nobody, &request("nobody")).await;
    assert!(matches!(status.phase, RunPhase::Ended(RunEnd { cause: Cause::Exited(0), .. })), "{status:?}");
    assert_eq!(failure(&status), "no host of the inventory was in any play");
    let broken = place("- hosts: [\n").unwrap();
    let status = run(&broken, &request("broken")).await;
    assert!(failure(&status).contains("Ansible ended with code"), "{status:?}");
    // An inventory whose plugin would run a program here.
    let plugin = place("- hosts: all\n  gather_facts: false\n  tasks: [{ansible.builtin.debug: }]\n").unwrap();
    let trap = plugin.top.path().join("trap");
    let inventory = format!("plugin: constructed\ncompose: {{x: \"lookup('pipe', 'touch {}')\"}}\n", trap.display());
    let status = run(&plugin, &RunRequest { inventory, ..request("plugin") }).await;
    assert!(matches!(status.verdict, Some(RunVerdict::Failed(_))) && !trap.exists(), "{status:?}");
}

#[tokio::test]
async fn nothing_of_the_appliances_environment_reaches_a_playbook() {
    let Some(place) = place(
        "- hosts: all
  gather_facts: false
  tasks:
    - {name: environment, ansible.builtin.shell: 'env > {{ artifacts_dir }}/env; ulimit -c > {{ artifacts_dir }}/core; id -u', changed_when: false}
",
    ) else {
        return;
    };
    let request = request("env");
    let status = run(&place, &request).await;
    assert_eq!(status.verdict, Some(RunVerdict::Succeeded), "{status:?}\n{}", log(&place, &request.id));
    let artifacts = place.runs().folder(&request.id).join("artifacts");
    let environment = fs::read_to_string(artifacts.join("env")).unwrap();
    // What cargo and the shell that started the tests have set.
    for own in ["CARGO", "RUSTFLAGS", "SLIPWAY_TESTS", "USER=", "SHELL=", "a key of"] {
        assert!(!environment.contains(own), "{own} in {environment}");
    }
    assert!(environment.contains("/scratch/home"), "{environment}");
    assert_eq!(fs::read_to_string(artifacts.join("core")).unwrap(), "0\n");
}

#[tokio::test]
async fn a_run_that_is_under_way_is_found_again_and_cancelled() {
    let Some(place) = place(
        "- hosts: all
  gather_facts: false
  tasks:
    - {name: wait, ansible.builtin.shell: 'touch {{ artifacts_dir }}/begun; exec sleep 600'}
",
    ) else {
        return;
    };
    let request = request("long");
    place.runs().start(&place.installation(), &request).await.unwrap();
    place.until(&request.id, "artifacts/begun").await;
    let again = place.runs();
    assert_eq!(again.start(&place.installation(), &request).await.unwrap(), RunPhase::Running);
    let status = again.status(&request.id).unwrap();
    assert_eq!((status.progress.task.as_str(), status.playbook.as_str()), ("wait", "cluster.yml"), "{status:?}");
    again.cancel(&request.id).await.unwrap();
    assert_eq!(place.to_its_end(&request.id).await.verdict, Some(RunVerdict::Cancelled));
    place.assert_tidy(&request.id);
}

#[tokio::test]
async fn only_hosts_of_the_limit_are_touched() {
    let Some(place) = place("- hosts: all\n  gather_facts: false\n  tasks: [{ansible.builtin.command: 'true'}]\n")
    else {
        return;
    };
    let request = RunRequest {
        inventory: "all: {hosts: {one: {ansible_connection: local, ansible_become: false}, two: {ansible_connection: local, ansible_become: false}}}\n".into(),
        limit: vec!["two".into()],
        expected: vec!["two".into()],
        ..request("limit")
    };
    let status = run(&place, &request).await;
    assert_eq!(status.verdict, Some(RunVerdict::Succeeded), "{status:?}");
    assert_eq!(status.progress.hosts.keys().collect::<Vec<_>>(), ["two"]);
}

/// A module that says of itself what it likes, as a machine of somebody's may answer any module, and one that keeps what the checkout keeps.
const LIES: &str = r#"#!/usr/bin/python3
# WANT_JSON
import json, sys
facts = {"program": "touch pwned", "ip": "192.0.2.66", "ansible_kernel": "9.9", "services": {"x": {}}, "ansible_connection": "local"}
then = json.load(open(sys.argv[1])).get("then")
print(json.dumps({"changed": False, "ansible_facts": facts, "then": then}))
"#;

#[tokio::test]
async fn what_a_node_calls_a_fact_decides_nothing_here() {
    let Some(place) = place(
        "- hosts: all
  gather_facts: false
  roles: [keeps]
- hosts: all
  gather_facts: false
  tasks:
    - {name: ask, lies: }
    - {name: ask in a loop, lies: {then: '{{ program | default(\"unset\") }}'}, loop: [1, 2], register: asked}
    - {name: nothing comes of that, ansible.builtin.assert: {that: \"asked.results | map(attribute='then') | unique | list == ['unset']\"}}
- hosts: all
  gather_facts: false
  roles: [runs]
  tasks:
    - name: what is known
      ansible.builtin.assert:
        that: [program == 'true', ip == '127.0.0.1', ansible_kernel == '9.9', services.x is defined, main_ip == '127.0.0.1']
",
    ) else {
        return;
    };
    let write = |name: &str, text: &str| {
        let file = place.tree().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    write("library/lies.py", LIES);
    write("roles/keeps/tasks/main.yaml", "- name: keep\n  set_fact:\n    cacheable: true\n    main_ip: '{{ ip }}'\n");
    write("roles/runs/defaults/main.yml", "program: 'true'\n");
    let runs = "- {name: run, ansible.builtin.shell: '{{ program }}', delegate_to: localhost, changed_when: false}\n";
    write("roles/runs/tasks/main.yml", runs);
    let inventory = "all:\n  hosts:\n    one: {ansible_connection: local, ansible_become: false, ip: 127.0.0.1}\n";
    let request = RunRequest { inventory: inventory.into(), ..request("lies") };
    let status = run(&place, &request).await;
    assert_eq!(status.verdict, Some(RunVerdict::Succeeded), "{status:?}\n{}", log(&place, &request.id));
}

/// Whatever is run on the box for a node.
#[tokio::test]
async fn a_run_sees_nothing_of_the_appliances_and_changes_nothing_beside_its_own() {
    let me = std::process::id();
    let Some(place) = place(&format!(
        "- hosts: all
  gather_facts: false
  tasks:
    - name: look around
      ansible.builtin.shell: |
        for file in {{{{ private }}}} {{{{ other }}}}/plan.json {{{{ other }}}}/private/id /proc/{me}/mem /proc/{me}/environ /proc/{me}/maps; do
          (: <$file) 2>/dev/null && echo read $file
        done
        for file in ../plan.json ../log ../ended.json {{{{ tree }}}}/cluster.yml {{{{ tree }}}}/new {{{{ private }}}} ../../new /proc/{me}/oom_score_adj /proc/sys/kernel/core_pattern; do
          (: >>$file) 2>/dev/null && echo wrote $file
        done
        mv ../log ../artifacts/log 2>/dev/null && echo moved the log
        ln -s {{{{ private }}}} ../private/link 2>/dev/null && echo linked
        kill -0 {me} 2>/dev/null && echo reached the appliance
        grep -q '^CapEff:.*[1-9a-f]' /proc/self/status && echo has capabilities
        cat {{{{ tree }}}}/cluster.yml ../plan.json ../private/inventory /etc/passwd >/dev/null && echo x >../artifacts/mine && echo done
      args: {{chdir: '{{{{ artifacts_dir }}}}/../scratch'}}
      register: seen
      changed_when: false
    - {{name: nothing, ansible.builtin.assert: {{that: \"seen.stdout == 'done'\", fail_msg: '{{{{ seen.stdout }}}}'}}}}
"
    )) else {
        return;
    };
    if !is_confined() {
        assert!(std::env::var_os("SLIPWAY_TESTS_REQUIRE_TOOLS").is_none(), "this kernel has no Landlock");
        return;
    }
    let private = place.top.path().join("slipway.toml");
    fs::write(&private, "secret").unwrap();
    let other = RunRequest { id: "other".parse().unwrap(), ..request("other") };
    assert!(run(&place, &other).await.verdict.is_some());
    let folder = place.runs().folder(&other.id);
    fs::create_dir_all(folder.join("private")).unwrap();
    fs::write(folder.join("private/id"), "a key").unwrap();
    let vars = json!({"private": private, "other": folder, "tree": place.tree()});
    let vars = RunVars::of_administrator(vars.as_object().unwrap().clone()).unwrap();
    let installation = place.installation();
    let hidden = [installation.hidden.clone(), vec![private]].concat();
    let request = RunRequest { vars, ..request("looks") };
    place.runs().start(&installation.hiding(hidden), &request).await.unwrap();
    let status = place.to_its_end(&request.id).await;
    assert_eq!(status.verdict, Some(RunVerdict::Succeeded), "{status:?}\n{}", log(&place, &request.id));
}

/// A real checkout, where `$SLIPWAY_KUBESPRAY` names one and `$ANSIBLE_VENV` has what it wants.
#[tokio::test]
#[ignore = "needs a checkout of kubespray, which $SLIPWAY_KUBESPRAY names"]
async fn kubespray_itself_takes_the_command_lines() {
    let tree = std::env::var_os("SLIPWAY_KUBESPRAY").expect("it names a checkout");
    let environment = needs::ansible().expect("and this what it wants");
    let place = Place::with_tree("");
    let installation = Installation { tree: tree.into(), environment, ..place.installation() };
    installation.inspect().unwrap();
    let runs = place.runs();
    let nodes = vec!["one".to_owned()];
    for (number, playbook) in
        [Playbook::Cluster, Playbook::Scale, Playbook::RemoveNode { nodes }, Playbook::UpgradeCluster, Playbook::Reset]
            .into_iter()
            .enumerate()
    {
        let groups = ["kube_control_plane", "etcd", "kube_node"].map(|group| format!("{group}: {{hosts: {{one: }}}}"));
        let inventory =
            format!("all: {{hosts: {{one: {{ansible_connection: local}}}}, children: {{{}}}}}", groups.join(", "));
        let request = RunRequest { playbook, inventory, ..request(&format!("real-{number}")) };
        let folder = runs.folder(&request.id);
        let plan = super::super::command::plan(&installation, &folder, &request);
        runs.make(&folder, &plan, &super::super::command::vars(&installation, &folder, &request), &request).unwrap();
        let (program, arguments) = plan.command.split_first().unwrap();
        let mut command = tokio::process::Command::new(program);
        command.args(arguments).arg("--syntax-check").env_clear().envs(&plan.environment).current_dir(&folder);
        let output = tokio::time::timeout(DEADLINE, command.output()).await.expect("in time").unwrap();
        assert!(output.status.success(), "{}: {}", plan.playbook, String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stdout).contains(request.playbook.file()), "{}", plan.playbook);
    }
}
