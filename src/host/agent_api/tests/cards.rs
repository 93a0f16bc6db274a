//! Which machine a session is for: the network cards that answer at its address.

use super::*;

/// The kernel's neighbour table says that this card answers at every address.
fn answers(last: Option<u8>) -> crate::boot::neighbour::Neighbours {
    use crate::boot::neighbour::ArpAnswers;
    let card = last.map(|last| crate::api::MacAddress([2, 0, 0, 0, 0, last]));
    says(card.map_or(ArpAnswers::Unseen, ArpAnswers::Card))
}

fn says(answers: crate::boot::neighbour::ArpAnswers) -> crate::boot::neighbour::Neighbours {
    use futures::FutureExt;
    Arc::new(move |_| async move { answers }.boxed())
}

/// Whoever answers no ARP, or by another card than before, goes on with nobody's session.
#[tokio::test]
async fn a_session_goes_on_only_where_a_card_of_the_hosts_answers() {
    use crate::boot::neighbour::ArpAnswers;
    let mut site = Site::new(&[StepAction::WriteImage]).await;
    let card = |last| ArpAnswers::Card(crate::api::MacAddress([2, 0, 0, 0, 0, last]));
    let now: Arc<std::sync::Mutex<ArpAnswers>> = Arc::new(std::sync::Mutex::new(ArpAnswers::Nobody));
    let seen = Arc::clone(&now);
    let neighbours: crate::boot::neighbour::Neighbours = Arc::new(move |_| {
        use futures::FutureExt;
        let answers = *seen.lock().unwrap();
        async move { answers }.boxed()
    });
    site.router = site.sessions.clone().with_neighbours(neighbours).router();
    // The index is told anew of the host when its intent changes.
    let inspected = || {
        let mut host = site.index.by_name("default", "h").expect("known").as_ref().clone();
        host.macs = vec![MAC.parse().unwrap(), crate::api::MacAddress([2, 0, 0, 0, 0, 2])];
        site.index.insert(host);
    };
    inspected();
    let token = site.tokens.mint_at(&site.uid, 7, Some([10, 0, 0, 5].into())).unwrap();
    let (status, answer) = site.open_by(&[MAC], NODE, &token).await;
    assert_eq!(status, 403, "{answer}");
    assert!(answer["reason"].as_str().unwrap().contains("no network card answers ARP at 10.0.0.5"), "{answer}");
    *now.lock().unwrap() = card(1);
    let (status, answer) = site.open_by(&[MAC], NODE, &token).await;
    assert_eq!(status, 200, "{answer}");
    let session = answer["session"].as_str().unwrap().to_owned();
    let is_open = || {
        let host = site.index.by_name("default", "h").expect("known");
        host.intent.as_ref().is_some_and(|intent| intent.session_open)
    };
    site.until("the index knows of the session", is_open).await;
    inspected();
    for (answers, expected) in [(card(2), 204), (card(0x66), 403), (ArpAnswers::Nobody, 403), (ArpAnswers::Unseen, 204)]
    {
        *now.lock().unwrap() = answers;
        let (status, answer) = site.call(NODE, &session, "POST", "event", json!({ "step": "7.1", "phase": "a" })).await;
        assert_eq!(status, expected, "{answers:?}: {answer}");
    }
    let (status, answer) =
        site.call("10.0.0.6", &session, "POST", "event", json!({ "step": "7.1", "phase": "a" })).await;
    assert_eq!(status, 403, "{answer}");
    assert!(answer["reason"].as_str().unwrap().contains("was given to 10.0.0.5"), "{answer}");
}

/// By it a machine's script goes there only from then on.
#[tokio::test]
async fn a_session_says_which_network_it_came_from() {
    use crate::boot::home::SiteNetwork;
    let mut site = Site::new(&[StepAction::Inspect]).await;
    let network = |name: &str, subnet: &str| SiteNetwork {
        name: name.into(),
        subnet: subnet.parse().unwrap(),
        reserved: Default::default(),
    };
    let networks = vec![network("other", "10.1.0.0/16"), network("rack", "10.0.0.0/24")];
    site.router = site.sessions.clone().with_networks(networks).router();
    let token = site.tokens.mint_at(&site.uid, 7, Some([10, 0, 0, 5].into())).unwrap();
    let (status, answer) = site.open_by(&[MAC], NODE, &token).await;
    assert_eq!(status, 200, "{answer}");
    let session = site.status().await.session.expect("a session");
    assert_eq!(session.network, "rack");
    // Where Slipway gives no addresses, the ramdisk may have its own in another network than the firmware.
    let mut site = Site::new(&[StepAction::Inspect]).await;
    let networks = vec![network("other", "10.1.0.0/16"), network("rack", "10.0.0.0/24")];
    site.router = site.sessions.clone().with_networks(networks).with_neighbours(answers(Some(1))).router();
    let bound = crate::boot::TokenBinding::First([10, 1, 0, 5].into());
    let token = site.tokens.mint_bound(&site.uid, 7, bound).unwrap();
    let (status, answer) = site.open_by(&[MAC], NODE, &token).await;
    assert_eq!(status, 200, "{answer}");
    let session = site.status().await.session.expect("a session");
    assert_eq!(session.network, "other");
}

/// Also where the host has one card only, or none was inspected: the machine said at the beginning which it has.
#[tokio::test]
async fn a_session_goes_on_by_the_cards_that_it_was_opened_with() {
    use crate::boot::neighbour::ArpAnswers;
    let card = |last| ArpAnswers::Card(crate::api::MacAddress([2, 0, 0, 0, 0, last]));
    let second = "02:00:00:00:00:02";
    // what is done, whether an agent reported the host's one card, and where it goes on afterwards
    type Row = (StepAction, bool, &'static [(u8, u16)]);
    let rows: [Row; 3] = [
        (StepAction::WriteImage, true, &[(1, 204), (2, 403), (0x66, 403)]),
        (StepAction::WriteImage, false, &[(1, 204), (2, 204), (0x66, 403)]),
        (StepAction::Inspect, true, &[(1, 204), (2, 204), (0x66, 403)]),
    ];
    for (action, was_inspected, calls) in rows {
        let mut site = Site::new(&[action]).await;
        let now = Arc::new(std::sync::Mutex::new(card(1)));
        let seen = Arc::clone(&now);
        let neighbours: crate::boot::neighbour::Neighbours = Arc::new(move |_| {
            use futures::FutureExt;
            let answers = *seen.lock().unwrap();
            async move { answers }.boxed()
        });
        site.router = site.sessions.clone().with_neighbours(neighbours).router();
        let know = || {
            let mut host = site.index.by_name("default", "h").expect("known").as_ref().clone();
            let record = host.ownership.record.get_or_insert_default();
            Arc::make_mut(record).cards = was_inspected.then(|| (MAC.to_owned(), 1)).into_iter().collect();
            site.index.insert(host);
        };
        know();
        let token = site.tokens.mint_at(&site.uid, 7, Some([10, 0, 0, 5].into())).unwrap();
        let (status, answer) = site.open_by(&[MAC, second], NODE, &token).await;
        assert_eq!(status, 200, "{answer}");
        let session = answer["session"].as_str().unwrap().to_owned();
        let is_open = || {
            let host = site.index.by_name("default", "h").expect("known");
            host.intent.as_ref().is_some_and(|intent| intent.session_open)
        };
        site.until("the index knows of the session", is_open).await;
        know();
        for (last, expected) in calls {
            *now.lock().unwrap() = card(*last);
            let event = json!({ "step": "7.1", "phase": "a" });
            let (status, answer) = site.call(NODE, &session, "POST", "event", event).await;
            assert_eq!(status, *expected, "{action:?} {was_inspected} {last}: {answer}");
        }
    }
}

#[tokio::test]
async fn a_session_is_for_a_machine_that_answers_by_a_card_of_the_hosts() {
    const OTHER: &str = "02:00:00:00:00:66";
    let address = Some([10, 0, 0, 5].into());
    // what is done, inspected cards, the card that answers, the cards that the machine says it has, the answer
    type Row = (StepAction, &'static [&'static str], Option<u8>, &'static [&'static str], u16);
    const SECOND: &str = "02:00:00:00:00:02";
    let rows: [Row; 8] = [
        (StepAction::WriteImage, &[MAC, SECOND], Some(0x66), &[MAC, OTHER], 403),
        (StepAction::WriteImage, &[MAC, SECOND], Some(0x66), &[MAC], 403),
        (StepAction::WriteImage, &[MAC, SECOND], Some(2), &[MAC], 200),
        (StepAction::WriteImage, &[MAC, SECOND], Some(1), &[MAC], 200),
        (StepAction::WriteImage, &[MAC, SECOND], None, &[MAC], 200),
        (StepAction::Inspect, &[MAC, SECOND], Some(0x66), &[MAC, OTHER], 200),
        (StepAction::Inspect, &[], Some(0x66), &[MAC], 403),
        (StepAction::WriteImage, &[], Some(0x66), &[MAC, OTHER], 200),
    ];
    for (action, inspected, card, says, expected) in rows {
        let mut site = Site::new(&[action]).await;
        site.router = site.sessions.clone().with_neighbours(answers(card)).router();
        let mut host = site.index.by_name("default", "h").expect("known").as_ref().clone();
        host.macs.extend(inspected.iter().skip(1).map(|mac| mac.parse::<crate::api::MacAddress>().unwrap()));
        site.index.insert(host);
        let token = site.tokens.mint_at(&site.uid, 7, address).unwrap();
        let (status, answer) = site.open_by(says, NODE, &token).await;
        assert_eq!(status, expected, "{action:?} {inspected:?} {card:?} {says:?}: {answer}");
        if expected == 403 {
            let reason = answer["reason"].as_str().unwrap();
            assert!(reason.contains("answers at 10.0.0.5 is 02:00:00:00:00:66"), "{reason}");
        }
    }
}

#[test]
fn a_token_of_who_asked_first_goes_with_the_machine_and_with_nobody_else() {
    use super::session::bound_elsewhere;
    use crate::api::MacAddress;
    use crate::boot::neighbour::ArpAnswers;
    use crate::boot::{BootTokenClaims, TokenBinding};
    let (mac, other) = (MacAddress([2, 0, 0, 0, 0, 1]), MacAddress([2, 0, 0, 0, 0, 9]));
    let (own, at): (_, std::net::Ipv4Addr) = ([mac], [10, 0, 0, 5].into());
    let elsewhere = [10, 0, 0, 6];
    // what it is bound to, who calls, the card there, seconds since it was made, the answer
    type Row = (TokenBinding, [u8; 4], ArpAnswers, i64, Option<u16>);
    let rows: [Row; 12] = [
        (TokenBinding::Nowhere, elsewhere, ArpAnswers::Unseen, 0, None),
        (TokenBinding::Leased(at), [10, 0, 0, 5], ArpAnswers::Card(other), 0, None),
        (TokenBinding::Leased(at), elsewhere, ArpAnswers::Card(mac), 1_000, Some(403)),
        (TokenBinding::Leased(at), elsewhere, ArpAnswers::Unseen, 1_000, Some(403)),
        (TokenBinding::First(at), [10, 0, 0, 5], ArpAnswers::Unseen, 0, None),
        (TokenBinding::First(at), elsewhere, ArpAnswers::Card(mac), 0, None),
        (TokenBinding::First(at), elsewhere, ArpAnswers::Card(other), 0, Some(403)),
        (TokenBinding::First(at), elsewhere, ArpAnswers::Card(other), 1_000, Some(403)),
        (TokenBinding::First(at), elsewhere, ArpAnswers::Unseen, 0, Some(503)),
        (TokenBinding::First(at), elsewhere, ArpAnswers::Unseen, 119, Some(503)),
        (TokenBinding::First(at), elsewhere, ArpAnswers::Unseen, 120, None),
        (TokenBinding::First(at), elsewhere, ArpAnswers::Nobody, 120, Some(403)),
    ];
    for (bound, peer, card, after, wanted) in rows {
        let plain = BootTokenClaims {
            uid: "u".into(),
            generation: 1,
            nonce: [0; 16],
            issued_at: 100,
            address: None,
            first: false,
        };
        let refused = bound_elsewhere(&plain.bound_to(bound), peer.into(), card, &own, 100 + after).err();
        assert_eq!(refused.map(|refused| refused.0.as_u16()), wanted, "{bound:?} {peer:?} {card:?} {after}");
    }
}

#[tokio::test]
async fn a_liars_list_of_cards_is_a_short_line_of_the_log() {
    use tracing_subscriber::fmt::MakeWriter;
    #[derive(Clone, Default)]
    struct Written(Arc<std::sync::Mutex<Vec<u8>>>);
    impl std::io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    impl<'w> MakeWriter<'w> for Written {
        type Writer = Self;
        fn make_writer(&'w self) -> Self {
            self.clone()
        }
    }
    let written = Written::default();
    let filter = tracing_subscriber::EnvFilter::new("info");
    let format = crate::config::LogFormat::Text;
    let log = crate::log::subscriber(filter, format, false, written.clone(), crate::log::Ration::default());
    let _logs = tracing::subscriber::set_default(log);
    let site = Site::new(&[StepAction::Inspect]).await;
    let good: Vec<String> = (0..=255).map(|last| format!("02:00:00:00:01:{last:02x}")).collect();
    let mut list: Vec<&str> = good.iter().map(String::as_str).collect();
    let forged = "x\n2026-11-22T00:00:00Z  INFO slipway::appliance: FAKE LINE";
    list.push(forged);
    for _ in 0..300 {
        assert_eq!(site.open_by(&list, STRANGER, "no token").await.0, 403);
    }
    let log = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("agent refused")).collect();
    assert!(lines.len() <= 60, "{} lines", lines.len());
    assert!(lines.iter().all(|line| line.len() < 500 && line.contains("and 248 more")), "{}", lines[0]);
    assert!(!log.contains("FAKE LINE"), "{log}");
}
