//! Who floods boot HTTP: what the log of the process has of it.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use crate::process::{Appliance, DEADLINE, until};
use futures::future::join_all;

/// Somebody of whom the appliance knows nothing.
const FLOOD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);
/// Requests, each of which is worth a line.
const REQUESTS: usize = 4000;
/// Requests at once.
const AT_ONCE: usize = 8;
/// Lines of one address in ten seconds.
const LINES: usize = 30;

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_from_one_address_leaves_a_short_log_that_says_how_much_is_left_out() {
    slipway::appliance::install_tls_provider();
    let appliance = Appliance::new().await;
    let client = || reqwest::Client::builder().no_proxy().timeout(DEADLINE).local_address(IpAddr::V4(FLOOD));
    let client = client().build().unwrap();
    let url = |path: &str| format!("http://{}{path}", appliance.boot);
    until("boot HTTP answers", async || client.get(url("/boot/ca.pem")).send().await.ok()).await;
    let begin = Instant::now();
    let paths = ["/boot/ipxe?mac=nobody&arch=7", "/boot/files/secret", "/boot/iso/nobodys.iso", "/boot/files/initrd"];
    let flood = (0..AT_ONCE).map(|_| async {
        let mut refused = 0;
        for number in 0..REQUESTS / AT_ONCE {
            let answer = client.get(url(paths[number % paths.len()])).send().await.expect("an answer");
            refused += usize::from(answer.status().is_client_error());
            answer.bytes().await.expect("to its end");
        }
        refused
    });
    assert_eq!(join_all(flood).await.into_iter().sum::<usize>(), REQUESTS, "all of them are refused");
    let stretches = usize::try_from(begin.elapsed().as_secs()).unwrap() / 10 + 2;
    let lines = appliance.log().lines().filter(|line| line.contains("127.0.0.66:")).count();
    assert!((1..=LINES * stretches).contains(&lines), "{lines} lines in {stretches} times ten seconds");
    assert!(lines * 10 < REQUESTS, "{lines} lines");
    let told = async || appliance.log().lines().find(|line| line.contains("left out")).map(str::to_owned);
    let told = until("what was left out is told", told).await;
    assert!(told.contains("127.0.0.66"), "{told}");
}
