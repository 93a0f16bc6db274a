//! BMC addresses found by the machine itself.

use crate::bmc::BmcAddress;
use crate::protocol::FoundBmc;

/// The address as a host names it; `None` when the machine could not tell where its BMC is. Redfish goes before IPMI.
///
/// # Errors
///
/// When it makes no address with the scheme that a rule wants.
pub fn address(found: &FoundBmc, scheme: Option<&str>) -> Result<Option<String>, String> {
    // What it reports is the machine's word: an address and nothing else.
    let Ok(ip) = found.address.parse::<std::net::IpAddr>() else { return Ok(None) };
    let host = match ip {
        std::net::IpAddr::V4(ip) => ip.to_string(),
        std::net::IpAddr::V6(ip) => format!("[{ip}]"),
    };
    let scheme = scheme.unwrap_or(if found.redfish { "redfish" } else { "ipmi" });
    let address = format!("{scheme}://{host}");
    BmcAddress::parse(&address).map_err(|error| error.to_string())?;
    Ok(Some(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_what_the_bmc_speaks_and_what_a_rule_wants() {
        let found =
            |address: &str, redfish| FoundBmc { address: address.into(), ipmi: true, redfish, ..FoundBmc::default() };
        let rows = [
            (found("10.0.0.5", false), None, Some("ipmi://10.0.0.5")),
            (found("10.0.0.5", true), None, Some("redfish://10.0.0.5")),
            (found("10.0.0.5", false), Some("idrac-virtualmedia"), Some("idrac-virtualmedia://10.0.0.5")),
            (found("fd00::5", true), None, Some("redfish://[fd00::5]")),
            (found("", true), None, None),
            (found("10.0.0.5/../x", true), None, None),
            (found("evil.example", true), None, None),
        ];
        for (found, scheme, wanted) in rows {
            assert_eq!(address(&found, scheme).expect("good").as_deref(), wanted, "{found:?}");
        }
        assert!(address(&found("10.0.0.5", false), Some("bogus")).is_err());
    }
}
