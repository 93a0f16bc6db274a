//! Request bodies of agents, bounded.
//!
//! Bodies of agents' calls: bounded in bytes, in time, in what all of them hold together and in what is made of them. Who
//! calls is known before anything is read, except where the body says it. Who holds most gives way to others ([`budget`]).

use std::cell::Cell;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use bytes::BytesMut;
use http_body_util::BodyExt;
use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::host::refused::AgentRefused;

mod budget;

use budget::{BodyBudget, BodyPlace, Sender};

/// How long a body may take to arrive, and how long one that is there may wait for its turn.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of all bodies together that arrive or are being worked on: of machines that show a boot token, of unknown
/// machines, of hosts. None of these can take the room of the others.
const OPENING: usize = 8 << 20;
const VISITORS: usize = 8 << 20;
const HOSTS: usize = 32 << 20;
/// Bodies that are being worked on at once, and those of unknown machines, apart, because their reports take long. What is
/// read of one is some times larger than what came.
const AT_ONCE: usize = 16;
const VISITORS_AT_ONCE: usize = 4;
/// Values in a body, and in one of its lists: more than the largest server has to tell.
const VALUES: usize = 20_000;
const ENTRIES: usize = 1024;

/// Whose body it is.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    /// It shows a boot token, which may be good, from this address.
    Opening(IpAddr),
    /// An unknown machine's that reports itself, from this address.
    Visitor(IpAddr),
    /// A host's.
    Host {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

impl Origin {
    fn sender(&self) -> Sender {
        match self {
            Self::Opening(address) | Self::Visitor(address) => {
                let group = network(*address).to_string();
                Sender { one: group.clone(), group }
            }
            Self::Host { namespace, name } => Sender { group: namespace.clone(), one: name.clone() },
        }
    }
}

/// An address; of IPv6 its network, since one machine may have any address of it.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        other => other,
    }
}

/// Room and turns of one kind of callers.
#[derive(Debug)]
struct RequestGate {
    room: BodyBudget,
    turns: Arc<Semaphore>,
}

impl RequestGate {
    fn new(bytes: usize, at_once: usize) -> Self {
        Self { room: BodyBudget::new(bytes), turns: Arc::new(Semaphore::new(at_once)) }
    }
}

/// Takes bodies in.
#[derive(Debug)]
pub(super) struct RequestLimits {
    patience: Duration,
    opening: RequestGate,
    visitors: RequestGate,
    hosts: RequestGate,
}

impl Default for RequestLimits {
    fn default() -> Self {
        let (opening, visitors) = (RequestGate::new(OPENING, AT_ONCE), RequestGate::new(VISITORS, VISITORS_AT_ONCE));
        Self { patience: PATIENCE, opening, visitors, hosts: RequestGate::new(HOSTS, AT_ONCE) }
    }
}

/// What was taken in. It keeps its room until it is dropped.
#[derive(Debug)]
pub(super) struct AcceptedRequest<T> {
    /// The body.
    pub value: T,
    /// Bytes that came.
    pub size: usize,
    _place: BodyPlace,
    _turn: Option<OwnedSemaphorePermit>,
}

fn busy() -> AgentRefused {
    AgentRefused(StatusCode::SERVICE_UNAVAILABLE, "the appliance has too much to read at once; try again".into())
}

impl RequestLimits {
    fn door(&self, origin: &Origin) -> &RequestGate {
        match origin {
            Origin::Opening(_) => &self.opening,
            Origin::Visitor(_) => &self.visitors,
            Origin::Host { .. } => &self.hosts,
        }
    }

    /// The bytes of a body, at most so many.
    ///
    /// # Errors
    /// It is longer, does not come in time, or comes with too many others.
    pub async fn bytes(
        &self,
        origin: &Origin,
        body: Body,
        most: usize,
    ) -> Result<AcceptedRequest<Bytes>, AgentRefused> {
        let (value, place) = self.arrive(origin, body, most).await?;
        place.begins().map_err(|_| busy())?;
        Ok(AcceptedRequest { size: value.len(), value, _place: place, _turn: None })
    }

    /// A body of JSON.
    ///
    /// # Errors
    /// As [`RequestLimits::bytes`]; or it is no such value, or larger than any machine's.
    pub async fn json<T: DeserializeOwned>(
        &self,
        origin: &Origin,
        body: Body,
        most: usize,
    ) -> Result<AcceptedRequest<T>, AgentRefused> {
        let (bytes, place) = self.arrive(origin, body, most).await?;
        // Only now: who sends slowly takes nobody's turn.
        let turn = tokio::select! {
            biased;
            () = place.pushed_out() => return Err(busy()),
            turn = tokio::time::timeout(self.patience, self.door(origin).turns.clone().acquire_owned()) => turn,
        };
        let turn = turn.ok().and_then(Result::ok).ok_or_else(busy)?;
        place.begins().map_err(|_| busy())?;
        let value = parse(&bytes).map_err(|error| {
            AgentRefused(StatusCode::BAD_REQUEST, format!("the appliance cannot read this call: {error}"))
        })?;
        Ok(AcceptedRequest { value, size: bytes.len(), _place: place, _turn: Some(turn) })
    }

    async fn arrive(&self, origin: &Origin, body: Body, most: usize) -> Result<(Bytes, BodyPlace), AgentRefused> {
        let late = |_| AgentRefused(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time".into());
        let place = self.door(origin).room.enter(origin.sender()).map_err(|_| busy())?;
        let bytes = tokio::select! {
            biased;
            () = place.pushed_out() => return Err(busy()),
            bytes = tokio::time::timeout(self.patience, collect(&place, body, most)) => bytes.map_err(late)??,
        };
        place.is_whole().map_err(|_| busy())?;
        Ok((bytes, place))
    }
}

async fn collect(place: &BodyPlace, mut body: Body, most: usize) -> Result<Bytes, AgentRefused> {
    let too_long = || AgentRefused(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is longer than {most} bytes"));
    if body.size_hint().lower() > most as u64 {
        return Err(too_long());
    }
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| AgentRefused(StatusCode::BAD_REQUEST, "the body was cut off".into()))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > most {
            return Err(too_long());
        }
        place.take(data.len()).map_err(|_| busy())?;
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

/// Measures first, and escapes what could rule a terminal: a list of empty entries becomes a hundred times as large as its text.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let (left, safe) = (Cell::new(VALUES), Cell::new(true));
    Measure { left: &left, safe: &safe }.deserialize(&mut reader)?;
    reader.end()?;
    if safe.get() {
        return serde_json::from_slice(bytes);
    }
    // It is stored, and shown on terminals.
    let mut value = serde_json::from_slice(bytes)?;
    crate::log::escape_all(&mut value);
    serde_json::from_value(value)
}

/// Reads a value and keeps nothing of it.
#[derive(Clone, Copy)]
struct Measure<'a> {
    left: &'a Cell<usize>,
    /// Whether all texts can be shown as they are.
    safe: &'a Cell<bool>,
}

impl Measure<'_> {
    fn count<E: serde::de::Error>(self) -> Result<(), E> {
        let left =
            self.left.get().checked_sub(1).ok_or_else(|| E::custom(format_args!("more than {VALUES} values")))?;
        self.left.set(left);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Measure<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Measure<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.safe.set(self.safe.get() && text.chars().all(crate::log::is_safe));
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut entries = 0;
        while list.next_element_seed(self)?.is_some() {
            entries += 1;
            if entries > ENTRIES {
                return Err(A::Error::custom(format_args!("a list of more than {ENTRIES} entries")));
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_key::<IgnoredAny>()?.is_some() {
            map.next_value_seed(self)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use serde_json::{Value, json};

    use super::*;
    use crate::protocol::{MAX_CALL, MAX_RESULT, StepOutcome};

    fn stranger(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn opening(last: u8) -> Origin {
        Origin::Opening(stranger(last))
    }

    fn host(namespace: &str, number: usize) -> Origin {
        Origin::Host { namespace: namespace.into(), name: number.to_string() }
    }

    /// A body that comes in these pieces, and then never ends.
    fn endless(pieces: Vec<&'static [u8]>) -> Body {
        let pieces = futures::stream::iter(pieces).map(|piece| Ok::<_, std::io::Error>(Bytes::from_static(piece)));
        Body::from_stream(pieces.chain(futures::stream::pending()))
    }

    #[tokio::test]
    async fn a_body_that_never_comes_is_not_waited_for() {
        let limits = RequestLimits { patience: Duration::from_millis(50), ..RequestLimits::default() };
        let refused = limits.bytes(&opening(1), endless(vec![b"x"]), 100).await.expect_err("refused");
        assert_eq!(refused.0, StatusCode::REQUEST_TIMEOUT);
        assert_eq!(limits.opening.room.left(), OPENING);
        // Nor one that comes letter by letter.
        let slow = futures::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b" ")), ()))
        });
        let refused = limits.json::<Value>(&host("a", 1), Body::from_stream(slow), 100).await.expect_err("refused");
        assert_eq!(refused.0, StatusCode::REQUEST_TIMEOUT);
    }

    #[tokio::test]
    async fn all_bodies_together_have_a_bound_and_nobody_takes_the_room_of_others() {
        let limits = RequestLimits::default();
        let mut held = Vec::new();
        let piece: &'static [u8] = &[b' '; MAX_CALL];
        for number in 0..OPENING / MAX_CALL {
            held.push(limits.bytes(&opening(number as u8), Body::from(piece), MAX_CALL).await.expect("room"));
        }
        let refused = limits.bytes(&opening(200), Body::from("x"), MAX_CALL).await.expect_err("full");
        assert_eq!(refused.0, StatusCode::SERVICE_UNAVAILABLE);
        limits.bytes(&host("a", 1), Body::from(piece), MAX_CALL).await.expect("room of its own");
        held.pop();
        limits.bytes(&opening(200), Body::from("x"), MAX_CALL).await.expect("room again");
    }

    /// So many bodies of each of these that begin and never end, on tasks of their own.
    async fn half_bodies(limits: &Arc<RequestLimits>, callers: Vec<Origin>, length: usize) -> tokio::task::JoinSet<()> {
        let mut tasks = tokio::task::JoinSet::new();
        let piece: &'static [u8] = vec![b' '; length].leak();
        for origin in callers {
            let limits = limits.clone();
            tasks.spawn(async move {
                drop(limits.bytes(&origin, endless(vec![piece]), length + 1).await);
                std::future::pending::<()>().await;
            });
        }
        tasks
    }

    async fn is_full(room: &BodyBudget, but: usize) {
        let full = async {
            while room.left() > but {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), full).await.expect("the room is full");
    }

    #[tokio::test]
    async fn half_bodies_of_a_few_keep_nobody_out() {
        let limits = Arc::new(RequestLimits::default());
        // Strangers before they show a token, as many bodies as there is room for.
        let callers = (0..OPENING / MAX_CALL).map(|number| opening((number / 8) as u8)).collect();
        let _strangers = half_bodies(&limits, callers, MAX_CALL - 1).await;
        is_full(&limits.opening.room, MAX_CALL).await;
        let piece: &'static [u8] = &[b' '; MAX_CALL];
        limits.bytes(&opening(200), Body::from(piece), MAX_CALL).await.expect("a machine that means well");
        // Hosts of one namespace.
        let callers = (0..HOSTS / MAX_RESULT).map(|number| host("bad", number)).collect();
        let _hosts = half_bodies(&limits, callers, MAX_RESULT - 1).await;
        is_full(&limits.hosts.room, MAX_RESULT).await;
        let report: &'static [u8] = vec![b' '; MAX_RESULT].leak();
        for number in 0..4 {
            limits.bytes(&host("good", number), Body::from(report), MAX_RESULT).await.expect("another namespace's");
        }
    }

    #[tokio::test]
    async fn reports_of_unknown_machines_take_no_turn_of_hosts() {
        let limits = RequestLimits::default();
        let mut held = Vec::new();
        for number in 0..VISITORS_AT_ONCE {
            let visitor = Origin::Visitor(stranger(number as u8));
            held.push(limits.json::<Value>(&visitor, Body::from("{}"), 100).await.expect("a turn"));
        }
        let limits = RequestLimits { patience: Duration::from_millis(20), ..limits };
        let refused = limits.json::<Value>(&Origin::Visitor(stranger(99)), Body::from("{}"), 100).await;
        assert_eq!(refused.expect_err("no turn").0, StatusCode::SERVICE_UNAVAILABLE);
        limits.json::<Value>(&opening(1), Body::from("{}"), 100).await.expect("a turn");
        limits.json::<Value>(&host("a", 1), Body::from("{}"), 100).await.expect("a turn");
    }

    #[tokio::test]
    async fn what_is_too_long_is_refused_unread_and_in_the_middle() {
        let limits = RequestLimits::default();
        for body in [Body::from("x".repeat(101)), endless(vec![&[b'x'; 60], &[b'x'; 60]])] {
            let refused = limits.bytes(&host("a", 1), body, 100).await.expect_err("refused");
            assert_eq!(refused.0, StatusCode::PAYLOAD_TOO_LARGE);
        }
        assert_eq!(limits.bytes(&host("a", 1), Body::empty(), 0).await.expect("nothing").value, Bytes::new());
    }

    #[tokio::test]
    async fn reports_of_the_largest_servers_are_taken_and_lists_without_end_are_not() {
        let limits = RequestLimits::default();
        let outcome =
            |inventory: Value| json!({ "step": "1", "succeeded": true, "message": "", "inventory": inventory });
        let nic = json!({ "name": "enp216s0f1np1v255", "model": "0x15b3 0x101d", "mac": "02:00:00:00:00:01",
            "ip": "10.0.0.5", "speedGbps": 100, "pciAddress": "0000:d8:00.1",
            "lldp": { "switchID": "aa:bb", "portID": "Ethernet1/1", "switchSystemName": "tor-1" } });
        let disk = json!({ "name": "/dev/disk/by-path/pci-0000:5e:00.0-scsi-0:0:1:0", "alternateNames": ["/dev/sda"],
            "type": "SSD", "sizeBytes": 1, "vendor": "V", "model": "M", "serialNumber": "S", "wwn": "0x1", "hctl": "0:0:1:0" });
        let flags: Vec<String> = (0..400).map(|number| format!("flag_{number}")).collect();
        let large = json!({ "nics": vec![nic; 512], "storage": vec![disk; 512], "cpu": { "flags": flags } });
        let read = |value: Value| {
            let limits = &limits;
            async move { limits.json::<StepOutcome>(&host("a", 1), Body::from(value.to_string()), MAX_RESULT).await }
        };
        let taken = read(outcome(large)).await.expect("taken").value.inventory.expect("an inventory");
        assert_eq!((taken.nics.len(), taken.storage.len()), (512, 512));
        let vlans = json!({ "vlans": vec![json!({}); 1000] });
        for (inventory, reason) in [
            (json!({ "nics": vec![json!({}); 1025] }), "a list of more than 1024"),
            (json!({ "nics": vec![vlans; 30] }), "more than 20000 values"),
            (json!({ "nics": 7 }), "cannot read this call"),
        ] {
            let refused = read(outcome(inventory)).await.expect_err(reason);
            assert!(refused.0 == StatusCode::BAD_REQUEST && refused.1.contains(reason), "{refused:?}");
        }
        let deep = format!("{}1{}", "[".repeat(500), "]".repeat(500));
        for bad in ["", "{", "{} {}", &deep, "\u{fffd}"] {
            let read = limits.json::<Value>(&host("a", 1), Body::from(bad.to_owned()), 1 << 20).await;
            assert_eq!(read.expect_err("refused").0, StatusCode::BAD_REQUEST, "{bad:.20}");
        }
        assert_eq!(limits.hosts.room.left(), HOSTS);
        assert_eq!(limits.hosts.turns.available_permits(), AT_ONCE);
    }
}
