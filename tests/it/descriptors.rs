//! The appliance with few file descriptors, while others take all the connections that they can get.

use std::net::{Ipv4Addr, SocketAddr};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpSocket;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::process::{Appliance, DEADLINE, until};

/// Strangers, and connections that each of them wants to the API and to boot HTTP.
const STRANGERS: u8 = 8;
const TO_API: usize = 200;
const TO_BOOT: usize = 60;

/// One line of `/proc/PID/limits`: soft and hard limit of open files.
fn limits(appliance: &Appliance) -> (String, String) {
    let text = std::fs::read_to_string(format!("/proc/{}/limits", appliance.pid())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let mut words = line.split_whitespace().map(str::to_owned);
    (words.next().unwrap(), words.next().unwrap())
}

/// Holds a connection from this address for as long as it may, and then another, for ever.
async fn clutch(from: Ipv4Addr, to: SocketAddr) {
    loop {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        if let Ok(mut stream) = socket.connect(to).await {
            while let Ok(1..) = stream.read(&mut [0; 64]).await {}
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_go_on_while_strangers_take_every_connection() {
    slipway::appliance::install_tls_provider();
    // This process is all of the strangers.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(16_384), hard).unwrap();
    let mut appliance = Appliance::limited("ulimit -n 2048").await;
    let maps: Api<ConfigMap> = Api::default_namespaced(appliance.client().await);
    let idle = std::fs::read_dir(format!("/proc/{}/fd", appliance.pid())).unwrap().count();
    let mut strangers = JoinSet::new();
    for number in 0..STRANGERS {
        let from = Ipv4Addr::new(127, 0, 0, 2 + number);
        for (to, count) in [(appliance.address, TO_API), (appliance.boot, TO_BOOT)] {
            for _ in 0..count {
                strangers.spawn(clutch(from, to));
            }
        }
    }
    let (pid, mut most) = (appliance.pid(), 0);
    let mut look = || {
        let now = std::fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count).unwrap_or_default();
        most = now.max(most);
        now
    };
    until("strangers have much of it", async || (look() > idle + 300).then_some(())).await;
    // Values that the database keeps in files of their own.
    let value = "v".repeat(200_000);
    for number in 0..30 {
        let map = json!({"metadata": {"name": format!("map-{number}")}, "data": {"a": value}});
        let map = serde_json::from_value(map).unwrap();
        let params = PostParams::default();
        let written = timeout(DEADLINE, maps.create(&params, &map)).await.expect("in time");
        assert!(written.is_ok(), "map {number}: {written:?}\n{}", appliance.log());
        look();
    }
    assert!(appliance.runs(), "{}", appliance.log());
    assert!(!appliance.log().contains("Too many open files"), "{}", appliance.log());
    println!("descriptors: {idle} idle, {most} at most, of 2048");
    assert!(most <= 2048 - 512, "{most}");
    // Who is known still gets a new connection.
    timeout(DEADLINE, appliance.client()).await.expect("a new connection");
}

#[tokio::test]
async fn the_soft_limit_is_raised_and_too_low_a_hard_one_is_refused() {
    slipway::appliance::install_tls_provider();
    let appliance = Appliance::limited("ulimit -Sn 256; ulimit -Hn 4096").await;
    appliance.client().await;
    assert_eq!(limits(&appliance), ("4096".to_owned(), "4096".to_owned()));

    let mut appliance = Appliance::limited("ulimit -n 128").await;
    assert!(!appliance.ended().await);
    let log = appliance.log();
    for part in ["128", "2048", "ulimit -n", "LimitNOFILE="] {
        assert!(log.contains(part), "{part}: {log}");
    }
}
