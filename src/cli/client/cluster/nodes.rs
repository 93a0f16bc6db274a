//! What is written on the nodes of a new cluster beside what kubeadm writes: pure.

use std::net::IpAddr;

use serde_json::{Value, json};

/// Priority of a node whose API server answers, in VRRP (RFC 9568, section 6.1).
const PRIORITY: u8 = 100;
/// How much less it is while it does not answer. Not all of it: where none answers, one has the address all the same, for the
/// first API server begins behind it.
const ILL: u8 = 50;

/// What stands for the interface in keepalived's configuration, until the machine knows it.
const INTERFACE: &str = "@INTERFACE@";
/// What stands for the machine's own address in kubeadm's configuration.
const OWN_ADDRESS: &str = "@ADDRESS@";

fn file(path: &str, mode: &str, content: String) -> Value {
    json!({"path": path, "owner": "root:root", "permissions": mode, "content": content})
}

/// Has containerd get the images of all registries from one (its `hosts.toml`). `server` keeps it from asking them as well.
pub(super) fn mirror(registry: &str) -> Value {
    let content = format!("server = \"{registry}\"\n\n[host.\"{registry}\"]\ncapabilities = [\"pull\", \"resolve\"]\n");
    file("/etc/containerd/certs.d/_default/hosts.toml", "0644", content)
}

/// Has the nodes of the control plane hold the endpoint's address by VRRP: of those whose API server answers, one.
pub(super) fn hold(configuration: &mut Value, address: &str, port: u16) {
    let files = configuration.as_object_mut().map(|map| map.entry("files").or_insert_with(|| json!([])));
    if let Some(Value::Array(files)) = files {
        files.push(file("/etc/keepalived/keepalived.conf", "0600", keepalived(address)));
        files.push(file("/etc/keepalived/apiserver", "0755", probe(port)));
    }
    // Interface and address that the machine reaches the endpoint by, before it holds it. Afterwards a node might take the endpoint's
    // address for its own.
    let way = |word: &str| format!("$(ip -o route get {address} | sed -n 's/.* {word} \\([^ ]*\\).*/\\1/p')");
    configuration["preKubeadmCommands"] = json!([
        format!("sed -i \"s/{INTERFACE}/{}/\" /etc/keepalived/keepalived.conf", way("dev")),
        format!("sed -i \"s/{OWN_ADDRESS}/{}/\" /run/kubeadm/*.yaml", way("src")),
        "systemctl enable keepalived",
        "systemctl restart keepalived",
    ]);
    let bind = json!({"advertiseAddress": OWN_ADDRESS, "bindPort": port});
    configuration["initConfiguration"]["localAPIEndpoint"] = bind.clone();
    configuration["joinConfiguration"]["controlPlane"] = json!({"localAPIEndpoint": bind});
    for how in ["initConfiguration", "joinConfiguration"] {
        if let Some(Value::Array(arguments)) = configuration[how].pointer_mut("/nodeRegistration/kubeletExtraArgs") {
            arguments.push(json!({"name": "node-ip", "value": OWN_ADDRESS}));
        }
    }
}

fn keepalived(address: &str) -> String {
    format!(
        "global_defs {{\n  enable_script_security\n  script_user root\n}}\n\
         vrrp_script apiserver {{\n  script \"/etc/keepalived/apiserver\"\n  interval 2\n  timeout 4\n  fall 3\n  rise 1\n  \
         weight -{ILL}\n}}\n\
         vrrp_instance endpoint {{\n  state BACKUP\n  interface {INTERFACE}\n  virtual_router_id {}\n  priority {PRIORITY}\n  \
         advert_int 1\n  virtual_ipaddress {{\n    {address}\n  }}\n  track_script {{\n    apiserver\n  }}\n}}\n",
        router_id(address)
    )
}

/// Tells clusters of one network from each other, as 1 to 255: by the end of the address.
fn router_id(address: &str) -> u8 {
    let end = match address.parse() {
        Ok(IpAddr::V4(address)) => address.octets()[3],
        Ok(IpAddr::V6(address)) => address.octets()[15],
        Err(_) => 0,
    };
    end.max(1)
}

/// Whether this node's API server lives. Who may ask this needs no login.
fn probe(port: u16) -> String {
    format!(
        "#!/bin/sh\nexec curl --silent --fail --insecure --max-time 3 --output /dev/null https://localhost:{port}/livez\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routers_of_vrrp_differ_by_the_end_of_the_address() {
        for (address, id) in [("172.22.0.10", 10), ("10.0.0.0", 1), ("fd00::12", 0x12), ("name", 1)] {
            assert_eq!(router_id(address), id, "{address}");
        }
    }

    #[test]
    fn the_address_is_held_before_kubeadm_runs_and_its_port_is_the_servers() {
        let registration = json!({"nodeRegistration": {"kubeletExtraArgs": [{"name": "node-labels", "value": "a=b"}]}});
        let mut configuration = json!({"initConfiguration": registration, "joinConfiguration": registration});
        hold(&mut configuration, "172.22.0.10", 8443);
        let commands = configuration["preKubeadmCommands"].as_array().unwrap();
        assert_eq!(
            commands[0],
            "sed -i \"s/@INTERFACE@/$(ip -o route get 172.22.0.10 | sed -n 's/.* dev \\([^ ]*\\).*/\\1/p')/\" \
             /etc/keepalived/keepalived.conf"
        );
        assert_eq!(commands.len(), 4);
        for pointer in ["/initConfiguration/localAPIEndpoint", "/joinConfiguration/controlPlane/localAPIEndpoint"] {
            let endpoint = configuration.pointer(pointer).unwrap();
            assert_eq!(*endpoint, json!({"advertiseAddress": "@ADDRESS@", "bindPort": 8443}), "{pointer}");
        }
        for how in ["initConfiguration", "joinConfiguration"] {
            let arguments = configuration[how].pointer("/nodeRegistration/kubeletExtraArgs").unwrap();
            assert_eq!(arguments[1], json!({"name": "node-ip", "value": "@ADDRESS@"}), "{how}");
        }
        let text = configuration["files"][0]["content"].as_str().unwrap();
        assert!(text.contains("virtual_router_id 10\n") && text.contains("\n    172.22.0.10\n"), "{text}");
    }

    #[test]
    fn one_registry_stands_for_all() {
        let content = mirror("http://172.22.0.1")["content"].as_str().unwrap().to_owned();
        let read: toml::Table = content.parse().unwrap();
        assert_eq!(read["server"].as_str(), Some("http://172.22.0.1"));
        assert!(read["host"]["http://172.22.0.1"]["capabilities"].is_array());
    }
}
