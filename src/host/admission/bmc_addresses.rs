//! Admission of BMC addresses.
//!
//! Which BMC addresses hosts may name. Drivers judge them where they connect; here what a host says literally is refused
//! when it is written, for whoever writes it sees the reason at once.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::Value;

use crate::apiserver::{AdmissionOperation, AdmissionRequest, AdmissionRules, FieldError};
use crate::bmc::BmcAddress;
use crate::bmc::address::BmcHost;
use crate::live::Live;
use crate::outbound::{Allowed, ForbiddenAddress, Guard};

/// What judges the addresses that hosts name.
pub(in crate::host) fn guard(allow: Live<Vec<Allowed>>) -> Guard {
    Guard::new("bmc.allow", allow)
}

/// Refuses a new BMC address that is a literal one of this box. The appliance itself may write it: a discovered machine
/// says what it says, and nobody connects there.
pub(in crate::host) fn admission(guard: Guard) -> AdmissionRules {
    Arc::new(move |request: &AdmissionRequest<'_>| {
        let judged =
            !request.status && request.operation != AdmissionOperation::Delete && !request.identity.is_in_process();
        let refused = judged.then(|| refusal(&guard, request.old, request.object)).flatten();
        refused.map_or(Ok(()), |error| Err(vec![error]))
    })
}

fn refusal(guard: &Guard, old: Option<&Value>, new: &Value) -> Option<FieldError> {
    let address = |host: &Value| host["spec"]["bmc"]["address"].as_str().map(str::to_owned);
    let written = address(new)?;
    // One that was there before the configuration changed hinders nobody from changing something else.
    if old.and_then(address).is_some_and(|before| before == written) {
        return None;
    }
    let refused = literal(guard, &written).err()?;
    Some(FieldError::invalid("spec.bmc.address", &written.into(), refused.to_string()))
}

/// Judges an address that needs no DNS. What is no address is another rule's affair.
fn literal(guard: &Guard, written: &str) -> Result<(), ForbiddenAddress> {
    match BmcAddress::parse(written) {
        Ok(BmcAddress { host: BmcHost::Ip(ip), port, .. }) => guard.judge(SocketAddr::new(ip, port)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_new_literal_address_of_this_box_is_refused() {
        let host = |address: &str| json!({"spec": {"bmc": {"address": address}}});
        let guard = guard(vec!["127.0.0.3:623".parse().expect("an entry")].into());
        let rows = [
            (None, "ipmi://127.0.0.1", true),
            (None, "127.0.0.1", true),
            (None, "redfish://[::1]/redfish/v1/Systems/1", true),
            (None, "redfish://169.254.169.254", true),
            (Some("ipmi://10.0.0.1"), "ipmi://127.0.0.1", true),
            (Some("ipmi://127.0.0.1"), "ipmi://127.0.0.1:624", true),
            (Some("ipmi://127.0.0.1"), "ipmi://127.0.0.1", false),
            (None, "ipmi://127.0.0.3", false),
            (None, "ipmi://127.0.0.3:624", true),
            (None, "redfish://192.0.2.1", false),
            (None, "redfish://localhost", false),
            (None, "no address at all", false),
            (None, "", false),
        ];
        for (old, new, refused) in rows {
            let found = refusal(&guard, old.map(host).as_ref(), &host(new));
            assert_eq!(found.is_some(), refused, "{old:?} {new}: {found:?}");
        }
    }
}
