//! The load of `benches/run api`: one phase for each call, its figures as one line of JSON.
//!
//!     slipway-bench-api ADDRESS FOLDER fill HOSTS        BareMetalHosts of real size, their status too
//!     slipway-bench-api ADDRESS FOLDER read HOSTS        get, list and table latencies, one at a time
//!     slipway-bench-api ADDRESS FOLDER watch WATCHERS    one write to the last of so many watchers
//!     slipway-bench-api ADDRESS FOLDER idle WATCHERS     holds idle watches until its standard input ends
//!     slipway-bench-api ADDRESS FOLDER create WRITERS    durable creates a second
//!     slipway-bench-api ADDRESS - etcd WRITERS           durable puts a second into etcd (h2c, no TLS)
//!
//! FOLDER has ca.pem and admin.pem (certificate and key).

mod client;
mod host;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::{Client, Result, Server, grpc_put, lines};
use serde_json::json;
use tokio::task::JoinSet;

/// Connections that writers share, as the goroutines of one Go program would.
const CONNECTIONS: usize = 4;
const WRITE_TIME: Duration = Duration::from_secs(5);
/// Bytes of a written value, as etcd's own performance page has it.
const VALUE: usize = 256;
const HOSTS: &str = "/apis/metal3.io/v1alpha1/namespaces/default/baremetalhosts";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

#[tokio::main]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let [_, address, folder, phase, count] = words.as_slice() else {
        return Err("usage: slipway-bench-api ADDRESS FOLDER PHASE COUNT".into());
    };
    let count: usize = count.parse()?;
    let server = Server::new(address, folder)?;
    let figures = match phase.as_str() {
        "fill" => fill(&server, count).await?,
        "read" => read(&server, count).await?,
        "watch" => watch(&server, count).await?,
        "idle" => return idle(&server, count).await,
        "create" => create(&server, count).await?,
        "etcd" => etcd(&server, count).await?,
        other => return Err(format!("there is no phase {other:?}").into()),
    };
    println!("{figures}");
    Ok(())
}

async fn clients(server: &Server) -> Result<Vec<Client>> {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(server.connect().await?);
    }
    Ok(clients)
}

async fn fill(server: &Server, count: usize) -> Result<serde_json::Value> {
    let clients = clients(server).await?;
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for writer in 0..32 {
        let (client, next) = (clients[writer % CONNECTIONS].clone(), Arc::clone(&next));
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed) as usize;
                if number >= count {
                    return Ok(());
                }
                let (spec, status) = host::host(number);
                client.expect("POST", HOSTS, "application/json", spec, 201).await?;
                let at = format!("{HOSTS}/{}/status", host::name(number));
                client.expect("PATCH", &at, "application/merge-patch+json", status, 200).await?;
            }
        });
    }
    join(tasks).await?;
    let one = clients[0].get(&format!("{HOSTS}/{}", host::name(0)), "application/json").await?;
    Ok(json!({"bytes": one.len()}))
}

async fn read(server: &Server, hosts: usize) -> Result<serde_json::Value> {
    let client = server.connect().await?;
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    let mut sizes = [0; 3];
    for round in 0..2000 {
        let at = format!("{HOSTS}/{}", host::name(round * 7919 % hosts));
        let start = Instant::now();
        sizes[0] = client.get(&at, "application/json").await?.len();
        times[0].push(start.elapsed());
    }
    for (index, accept, rounds) in [(1, "application/json", 21), (2, TABLE, 21)] {
        for _ in 0..rounds {
            let start = Instant::now();
            sizes[index] = client.drain(HOSTS, accept).await?;
            times[index].push(start.elapsed());
        }
    }
    let [get, list, table] = times.map(|mut times| spread(&mut times));
    Ok(
        json!({"get": get, "list": list, "table": table, "get_bytes": sizes[0], "list_bytes": sizes[1], "table_bytes": sizes[2]}),
    )
}

/// Median, 99th percentile and worst, in milliseconds.
fn spread(times: &mut [Duration]) -> serde_json::Value {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1000.0;
    json!([at(0.5), at(0.99), at(1.0)])
}

async fn watch(server: &Server, watchers: usize) -> Result<serde_json::Value> {
    let clients = clients(server).await?;
    let (arrived, mut arrivals) = tokio::sync::mpsc::unbounded_channel();
    for watcher in 0..watchers {
        let at =
            format!("{HOSTS}?watch=true&resourceVersion=0&sendInitialEvents=false&resourceVersionMatch=NotOlderThan");
        let body = clients[watcher % CONNECTIONS].open(&at).await?;
        let arrived = arrived.clone();
        tokio::spawn(lines(body, move || arrived.send(Instant::now()).is_ok()));
    }
    let writer = server.connect().await?;
    let (mut last, mut answered) = (Vec::new(), Vec::new());
    for round in 0..100 {
        let at = format!("{HOSTS}/{}", host::name(round));
        let patch = json!({"metadata": {"annotations": {"bench": format!("{:?} {round}", Instant::now())}}});
        let start = Instant::now();
        writer.expect("PATCH", &at, "application/merge-patch+json", Bytes::from(patch.to_string()), 200).await?;
        answered.push(start.elapsed());
        let mut newest = start;
        for _ in 0..watchers {
            let arrival = tokio::time::timeout(Duration::from_secs(10), arrivals.recv()).await?;
            newest = newest.max(arrival.ok_or("a watch ended")?);
        }
        last.push(newest - start);
    }
    Ok(json!({"last": spread(&mut last), "answer": spread(&mut answered)}))
}

async fn idle(server: &Server, watchers: usize) -> Result<()> {
    let mut held = Vec::new();
    let mut client = server.connect().await?;
    for watcher in 0..watchers {
        // The server takes 250 streams a connection.
        if watcher % 200 == 199 {
            client = server.connect().await?;
        }
        held.push(
            client
                .open(&format!(
                    "{MAPS}?watch=true&resourceVersion=0&sendInitialEvents=false&resourceVersionMatch=NotOlderThan"
                ))
                .await?,
        );
    }
    println!("{}", json!({"watches": held.len()}));
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    Ok(())
}

async fn create(server: &Server, writers: usize) -> Result<serde_json::Value> {
    let clients = clients(server).await?;
    let value = "x".repeat(VALUE);
    measure(writers, move |writer, step| {
        let client = clients[writer % CONNECTIONS].clone();
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("w{writer}-{step}")}, "data": {"v": value}});
        async move { client.expect("POST", MAPS, "application/json", Bytes::from(object.to_string()), 201).await }
    })
    .await
}

async fn etcd(server: &Server, writers: usize) -> Result<serde_json::Value> {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(server.connect_plain().await?);
    }
    let value = vec![b'x'; VALUE];
    measure(writers, move |writer, step| {
        let client = clients[writer % CONNECTIONS].clone();
        let message = grpc_put(format!("{:08}", writer * 1_000_000 + step).as_bytes(), &value);
        async move { client.grpc("/etcdserverpb.KV/Put", message).await }
    })
    .await
}

/// Runs writers for a while; acknowledged writes a second and their latencies.
async fn measure<F, W>(writers: usize, write: F) -> Result<serde_json::Value>
where
    F: Fn(usize, usize) -> W + Clone + Send + 'static,
    W: Future<Output = Result<()>> + Send,
{
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for writer in 0..writers {
        let write = write.clone();
        tasks.spawn(async move {
            let mut times = Vec::new();
            while start.elapsed() < WRITE_TIME {
                let begun = Instant::now();
                write(writer, times.len()).await?;
                times.push(begun.elapsed());
            }
            Ok(times)
        });
    }
    let mut times = join(tasks).await?.concat();
    let rate = times.len() as f64 / start.elapsed().as_secs_f64();
    Ok(json!({"rate": rate, "count": times.len(), "latency": spread(&mut times)}))
}

async fn join<T: 'static>(mut tasks: JoinSet<Result<T>>) -> Result<Vec<T>> {
    let mut results = Vec::new();
    while let Some(done) = tasks.join_next().await {
        results.push(done??);
    }
    Ok(results)
}
