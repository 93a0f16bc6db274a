//! Ansible inventories: hosts, groups and variables as types, rendered as INI and as YAML.
//!
//! Ansible runs what an inventory says: a variable is a template, a line is an option of ssh, a name may be a pattern or the
//! machine that Ansible itself runs on. So nothing gets into one but by these types: names that mean only themselves ([`names`]),
//! variables that Ansible does not evaluate ([`variable`]), addresses of other machines. Both renderings ([`ini`], [`yaml`]) are
//! ASCII and give Ansible the same inventory. What is left out is a comment.
//!
//! [`hosts`] makes the inventory of hosts for playbooks of the user's own.
//!
//! How Ansible reads them:
//! <https://docs.ansible.com/ansible/latest/collections/ansible/builtin/ini_inventory.html>,
//! <https://docs.ansible.com/ansible/latest/collections/ansible/builtin/yaml_inventory.html>.

pub mod hosts;
mod ini;
mod names;
#[cfg(test)]
mod read_tests;
mod variable;
mod yaml;

use std::collections::{BTreeMap, BTreeSet};

pub use names::{GroupName, InventoryHostname, NameFault, Reachable, ReachableFault};
pub use variable::{TextFault, UnsafeText, Variable};

/// Variables by name. Names are the program's own: one that came from outside could be an option of ssh.
pub type Vars = BTreeMap<&'static str, Variable>;

/// Hosts, groups and variables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inventory {
    vars: Vars,
    hosts: Vec<(InventoryHostname, Vars)>,
    /// Those of `hosts`.
    names: BTreeSet<InventoryHostname>,
    groups: BTreeMap<GroupName, InventoryGroup>,
    comments: Vec<String>,
}

/// A group of hosts.
#[derive(Clone, Debug, Default, PartialEq)]
struct InventoryGroup {
    /// In the order in which Ansible takes them.
    hosts: Vec<InventoryHostname>,
    /// Those of `hosts`.
    names: BTreeSet<InventoryHostname>,
    children: BTreeSet<GroupName>,
}

/// What would make an inventory mean something else than was meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InventoryFault {
    /// Ansible would merge them.
    #[error("host {0} is there twice")]
    Twice(InventoryHostname),
    /// Ansible would make it, without an address.
    #[error("group {group} has the host {host}, which is not in the inventory")]
    UnknownHost {
        /// The group.
        group: GroupName,
        /// The host.
        host: InventoryHostname,
    },
    /// A group is its own descendant.
    #[error("group {0} is below itself")]
    Circle(GroupName),
    /// A pattern of that name would mean both.
    #[error("{0} is a host and a group")]
    HostAndGroup(InventoryHostname),
}

impl Inventory {
    /// A variable of all hosts.
    pub fn var(&mut self, name: &'static str, value: Variable) {
        self.vars.insert(name, value);
    }

    /// One more host, after those that are there.
    ///
    /// # Errors
    ///
    /// When it is there already.
    pub fn host(&mut self, name: InventoryHostname, vars: Vars) -> Result<(), InventoryFault> {
        if !self.names.insert(name.clone()) {
            return Err(InventoryFault::Twice(name));
        }
        self.hosts.push((name, vars));
        Ok(())
    }

    /// A group, which may be empty.
    pub fn group(&mut self, name: GroupName) {
        self.groups.entry(name).or_default();
    }

    /// Puts a host into a group, after those that are in it; once.
    ///
    /// # Errors
    ///
    /// When there is no such host.
    pub fn member(&mut self, group: GroupName, host: &InventoryHostname) -> Result<(), InventoryFault> {
        if !self.names.contains(host) {
            return Err(InventoryFault::UnknownHost { group, host: host.clone() });
        }
        let group = self.groups.entry(group).or_default();
        if group.names.insert(host.clone()) {
            group.hosts.push(host.clone());
        }
        Ok(())
    }

    /// Puts a group into a group.
    ///
    /// # Errors
    ///
    /// When the other one is below it already.
    pub fn child(&mut self, group: GroupName, child: GroupName) -> Result<(), InventoryFault> {
        if self.is_below(&child, &group) {
            return Err(InventoryFault::Circle(group));
        }
        self.group(child.clone());
        self.groups.entry(group).or_default().children.insert(child);
        Ok(())
    }

    /// Whether a group is another, or one of its descendants.
    fn is_below(&self, top: &GroupName, name: &GroupName) -> bool {
        let mut left = vec![top];
        // Without circles so far, this ends.
        while let Some(group) = left.pop() {
            if group == name {
                return true;
            }
            left.extend(self.groups.get(group).into_iter().flat_map(|group| &group.children));
        }
        false
    }

    /// A line for those who read the inventory, at its head.
    pub fn comment(&mut self, text: &str) {
        self.comments.push(names::shown(text));
    }

    /// Whether every name means one thing.
    ///
    /// # Errors
    ///
    /// With the first name that does not.
    pub fn check(&self) -> Result<(), InventoryFault> {
        let is_host = |group: &GroupName| self.names.iter().find(|host| host.as_str() == group.as_str());
        self.groups.keys().find_map(is_host).map_or(Ok(()), |host| Err(InventoryFault::HostAndGroup(host.clone())))
    }

    /// How many hosts there are.
    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// Whether there is no host.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> InventoryHostname {
        InventoryHostname::new(name).expect(name)
    }

    fn group(name: &str) -> GroupName {
        GroupName::new(name).expect(name)
    }

    #[test]
    fn a_host_is_there_once_and_a_group_has_only_hosts_that_are_there() {
        let mut inventory = Inventory::default();
        inventory.host(host("a"), Vars::new()).unwrap();
        assert_eq!(inventory.host(host("a"), Vars::new()), Err(InventoryFault::Twice(host("a"))));
        let unknown = InventoryFault::UnknownHost { group: group("g"), host: host("b") };
        assert_eq!(inventory.member(group("g"), &host("b")), Err(unknown));
        inventory.member(group("g"), &host("a")).unwrap();
        inventory.member(group("g"), &host("a")).unwrap();
        assert_eq!(inventory.ini().matches("[g]\na\n").count(), 1, "{}", inventory.ini());
        assert_eq!(inventory.check(), Ok(()));
        inventory.group(group("a"));
        assert_eq!(inventory.check(), Err(InventoryFault::HostAndGroup(host("a"))));
    }

    #[test]
    fn no_group_is_below_itself() {
        let mut inventory = Inventory::default();
        inventory.child(group("a"), group("b")).unwrap();
        inventory.child(group("b"), group("c")).unwrap();
        inventory.child(group("a"), group("c")).unwrap();
        for (top, below) in [("a", "a"), ("b", "a"), ("c", "a"), ("c", "b")] {
            assert_eq!(inventory.child(group(top), group(below)), Err(InventoryFault::Circle(group(top))));
        }
    }
}
