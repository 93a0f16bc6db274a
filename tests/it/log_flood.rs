//! Strangers call for sessions without a token that is good, as fast as they can: the log has an end, and what a known host
//! does is in it.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use crate::process::machine::{self, Machine};
use crate::process::{Appliance, DEADLINE};
use futures::future::join_all;
use reqwest::StatusCode;
use serde_json::json;

/// A stretch of time of the log's ration, and what it lets one stranger say in it, and all of them together.
const STRETCH: Duration = Duration::from_secs(10);
const OF_ONE: usize = 30;
const OF_STRANGERS: usize = 200;
/// Calls of one stranger under way.
const AT_ONCE: usize = 20;

/// An agent that calls from this address.
fn agent(appliance: &Appliance, address: Ipv4Addr) -> reqwest::Client {
    let ca = std::fs::read(appliance.data().join("pki").join("ca.crt")).unwrap();
    reqwest::Client::builder()
        .no_proxy()
        .timeout(DEADLINE)
        .local_address(std::net::IpAddr::V4(address))
        .tls_certs_only([reqwest::Certificate::from_pem(&ca).unwrap()])
        .build()
        .unwrap()
}

/// Asks for a session with a token that nobody gave; the answer's status.
async fn call(appliance: &Appliance, agent: &reqwest::Client) -> StatusCode {
    let cards: Vec<String> = (0..16).map(|last| format!("02:09:00:00:00:{last:02x}")).collect();
    let hello = json!({ "token": "made-up", "version": "0", "macAddresses": cards, "uuid": "", "uefi": true });
    let url = format!("https://{}/agent/v1/session", appliance.address);
    agent.post(url).json(&hello).send().await.expect("an answer").status()
}

/// Lines of the log that have this part.
fn lines(appliance: &Appliance, part: &str) -> usize {
    appliance.log().lines().filter(|line| line.contains(part)).count()
}

/// Many more calls from these addresses than the log may tell of, which is so much in a stretch, and in their midst one
/// of the known host's. The calls, and the most lines that they may have left.
async fn flood(appliance: &Appliance, from: &[Ipv4Addr], in_a_stretch: usize) -> (usize, usize) {
    let known = agent(appliance, machine::ADDRESS);
    let agents: Vec<_> = from.iter().map(|address| agent(appliance, *address)).collect();
    let begun = Instant::now();
    let mut calls = 0;
    loop {
        let round = agents.iter().flat_map(|agent| (0..AT_ONCE).map(move |_| call(appliance, agent)));
        let refused = join_all(round).await;
        assert!(refused.iter().all(|status| status.is_client_error()), "{refused:?}");
        calls += refused.len();
        // It may begin at a stretch's end, and ends in one.
        let stretches = begun.elapsed().as_secs() / STRETCH.as_secs() + 2;
        let most = in_a_stretch * usize::try_from(stretches).unwrap();
        if calls > 2 * most {
            assert_eq!(call(appliance, &known).await, StatusCode::FORBIDDEN);
            return (calls, most);
        }
        assert!(begun.elapsed() < DEADLINE, "{calls} calls only");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_without_a_token_do_not_fill_the_log_and_a_known_host_is_heard() {
    slipway::appliance::install_tls_provider();
    let (mut appliance, _machine) = Machine::beside("ulimit -n 4096").await;
    let known = format!("peer={} ", machine::ADDRESS);

    let one = Ipv4Addr::new(127, 1, 0, 1);
    let (calls, most) = flood(&appliance, &[one], OF_ONE).await;
    // Its call was the last one: what is told of those before is written.
    appliance.log_with(&known, 1).await;
    let told = lines(&appliance, &format!("peer={one} "));
    assert!((1..=most).contains(&told), "{told} lines of {calls} calls, at most {most}");
    assert_eq!(lines(&appliance, &known), 1, "{}", appliance.log());

    let before = lines(&appliance, "");
    let ten: Vec<_> = (1..=10).map(|last| Ipv4Addr::new(127, 1, 1, last)).collect();
    let (calls, most) = flood(&appliance, &ten, OF_STRANGERS).await;
    appliance.log_with(&known, 2).await;
    let told = lines(&appliance, "peer=127.1.1.");
    assert!((1..=most).contains(&told), "{told} lines of {calls} calls, at most {most}");
    assert_eq!(lines(&appliance, &known), 2, "{}", appliance.log());
    // Nor is there much else in it.
    let all = lines(&appliance, "") - before;
    assert!(all <= told + 20, "{all} lines, {told} of them of strangers");
    println!("{calls} calls, {told} lines");
    assert!(appliance.runs(), "{}", appliance.log());
}
