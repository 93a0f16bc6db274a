//! What an image's source must be, judged where the library is asked for it: an API server without our admission rules
//! lets everything through.

use super::*;

fn host_image(url: &str, checksum: Option<&str>) -> HostImage {
    HostImage { url: url.into(), checksum: checksum.map(str::to_owned), ..HostImage::default() }
}

/// Settles again and again, with time between.
fn live_on(model: &mut Model) {
    for _ in 0..5 {
        model.settle();
        model.now += Duration::from_secs(30);
        model.agent_acts();
    }
}

#[test]
fn a_source_that_may_not_be_read_never_comes_to_the_library() {
    let sum = Some("0123");
    let rows: [(HostImage, &str); 9] = [
        (host_image("file:///etc/slipway/engine.kubeconfig", sum), "http:// or https://"),
        (host_image("FILE:///etc/shadow", sum), "http:// or https://"),
        (host_image("ftp://x/i", sum), "http:// or https://"),
        (host_image("gopher://x/i", sum), "http:// or https://"),
        (host_image("oci://x/i:1", None), "http:// or https://"),
        (host_image("/etc/shadow", sum), "http:// or https://"),
        (host_image("http://x/i", Some("file:///etc/shadow")), "spec.image.checksum"),
        (host_image("https://x/i", Some("ftp://x/sums")), "spec.image.checksum"),
        (
            HostImage { format: Some("live-iso".into()), ..host_image("file:///etc/shadow", None) },
            "http:// or https://",
        ),
    ];
    for (image, said) in rows {
        // While it is inspected, where images are fetched ahead; and when it is available.
        for state in ["", "available"] {
            let mut model = Model::in_state(state);
            model.host.spec.image = Some(image.clone());
            model.image = None;
            model.edited();
            for _ in 0..10 {
                live_on(&mut model);
                assert!(model.image.is_none(), "{image:?} came to the library from {state:?}");
            }
            assert_eq!(model.state(), "available", "{image:?} from {state:?}");
            let status = model.status();
            assert_eq!(status.error_type, Some(ErrorType::Provisioning), "{image:?} from {state:?}");
            assert!(status.error_message.contains(said), "{}", status.error_message);
        }
    }
}

#[test]
fn an_image_of_another_source_or_of_an_earlier_spec_is_not_used() {
    let wanted = host_image("http://x/a.qcow2", Some("c"));
    let right = ImageSpec { url: wanted.url.clone(), checksum: wanted.checksum.clone(), ..ImageSpec::default() };
    let ready = |spec: &ImageSpec, generation, observed| {
        let status = ImageStatus {
            phase: ImagePhase::Ready,
            digest: Some("of somebody else".into()),
            observed_generation: Some(observed),
            ..ImageStatus::default()
        };
        let mut image = Image { status: Some(status), ..Image::new(&image_name(&wanted), spec.clone()) };
        image.metadata.generation = Some(generation);
        image
    };
    let foreign = [
        ImageSpec { url: "http://evil/a.qcow2".into(), ..right.clone() },
        ImageSpec { checksum: None, ..right.clone() },
        ImageSpec { checksum_type: Some(crate::api::metal3::ChecksumType::Md5), ..right.clone() },
        ImageSpec { format: Some("raw".into()), ..right.clone() },
    ];
    let rows = foreign.iter().map(|spec| (ready(spec, 1, 1), Some("slipway image remove"))).chain([
        // Its status is of what was written before.
        (ready(&right, 2, 1), None),
    ]);
    for (image, said) in rows {
        let mut model = Model::in_state("available");
        model.want_image(Some(&wanted.url));
        model.image = Some(image.clone());
        for _ in 0..10 {
            live_on(&mut model);
            let steps = model.intent.iter().flat_map(|intent| &intent.spec.steps);
            let used = steps.filter_map(|step| step.image.as_deref()).next();
            assert_eq!(used, None, "{:?}", image.spec);
        }
        let message = model.status().error_message;
        assert!(said.is_none_or(|said| message.contains(said)), "{:?}: {message}", image.spec);
    }
    let mut model = Model::in_state("available");
    model.want_image(Some(&wanted.url));
    model.image = Some(ready(&right, 2, 2));
    model.run_until("provisioned");
}

#[test]
fn no_event_and_no_error_shows_what_a_url_hides() {
    let url = "https://user:s3cret@x/a.qcow2?signature=s3cret";
    for fault in [None, Some("404 Not Found")] {
        let mut model = Model::with_image(url);
        let mut said = String::new();
        for _ in 0..200 {
            let transition = model.transition();
            said.extend(transition.notes.iter().map(|note| format!("{}\n", note.message)));
            said.push_str(&transition.status.error_message);
            if let AfterStore::Wait { reason, .. } = &transition.next {
                said.push_str(reason);
            }
            model.store(transition.status, transition.notes);
            match transition.next {
                AfterStore::Do(effect) => model.apply(&effect),
                AfterStore::Wait { .. } => {
                    model.now += Duration::from_secs(1);
                    model.agent_acts();
                }
                AfterStore::Again | AfterStore::Gone | AfterStore::Paused => {}
            }
            if let (Some(status), Some(fault)) = (model.image.as_mut().and_then(|image| image.status.as_mut()), fault) {
                status.phase = ImagePhase::Failed;
                status.message = Some(fault.into());
            }
        }
        assert!(said.contains("https://x/a.qcow2") && !said.contains("s3cret"), "{said}");
        assert!(fault.is_none_or(|fault| said.contains(fault)), "{said}");
        assert!(model.image.is_some_and(|image| !image.metadata.name.unwrap_or_default().contains("s3cret")));
    }
    let bare = image_name(&host_image("http://user:s3cret@host", None));
    assert!(bare.starts_with("image-"), "{bare}");
}

/// An Image that is in the library.
fn ready(name: &str, digest: &str, sha256: &str) -> Image {
    let status = ImageStatus {
        phase: ImagePhase::Ready,
        digest: Some(digest.into()),
        format: Some("raw".into()),
        sha256: Some(sha256.into()),
        ..ImageStatus::default()
    };
    Image {
        status: Some(status),
        ..Image::new(name, ImageSpec { url: "http://its/own".into(), ..ImageSpec::default() })
    }
}

/// What the agent was asked to write, or the machine to boot.
fn used(model: &Model) -> Option<String> {
    let intent = model.intent.as_ref()?;
    intent.spec.live_iso.clone().or_else(|| intent.spec.steps.iter().find_map(|step| step.image.clone()))
}

#[test]
fn a_host_waits_for_the_image_that_it_names_and_goes_on_when_it_is_there() {
    let sha256 = "b".repeat(64);
    let mut importing = ready("debian", "d7", &sha256);
    let status = importing.status.as_mut().expect("a status");
    (status.phase, status.percent) = (ImagePhase::Importing, Some(40));
    let mut failed = importing.clone();
    let status = failed.status.as_mut().expect("a status");
    (status.phase, status.message) = (ImagePhase::Failed, Some("http://intern/secret: no".into()));
    let mut stale = ready("debian", "d7", &sha256);
    stale.metadata.generation = Some(2);
    for (before, said) in [
        (None, "image debian, which is not in the library yet"),
        (Some(importing), "image debian, which is being imported, 40 %"),
        (Some(failed), "could not be imported"),
        (Some(stale), "waiting to be imported"),
    ] {
        let mut model = Model::in_state("available");
        model.host.spec.image = Some(host_image("slipway://debian", Some(&sha256)));
        model.image = before.clone();
        model.edited();
        // However few places there are: it takes none.
        model.settings.busy_limit = 0;
        for _ in 0..10 {
            let (reason, _) = model.settle();
            assert!(reason.contains(said) && !reason.contains("intern"), "{reason}");
            let status = model.status();
            assert_eq!((model.state(), status.operational_status), ("available", OperationalStatus::OK));
            assert_eq!(model.image, before, "nothing is imported for it");
            model.now += Duration::from_secs(60);
        }
        model.settings.busy_limit = 1;
        model.image = Some(ready("debian", "d7", &sha256));
        model.walk_until(|model| used(model).is_some());
        assert_eq!(used(&model).as_deref(), Some("d7"));
        // It is taken away while it is written.
        model.image = None;
        model.run_until("provisioned");
    }
}

#[test]
fn a_host_that_says_something_else_of_its_image_is_told_once_and_goes_on_when_it_is_right() {
    let (sha256, other) = ("b".repeat(64), "c".repeat(64));
    let with = |checksum: Option<&str>, format: &str| HostImage {
        format: Some(format.into()),
        ..host_image("slipway://debian", checksum)
    };
    for (image, said) in [
        (with(Some(&other), ""), "spec.image.checksum is not that of image debian"),
        (with(None, "qcow2"), "image debian is raw"),
        (with(None, "live-iso"), "image debian is raw"),
    ] {
        let mut model = Model::in_state("available");
        model.host.spec.image = Some(image.clone());
        model.image = Some(ready("debian", "d7", &sha256));
        model.edited();
        live_on(&mut model);
        let status = model.status();
        assert_eq!((model.state(), status.error_type), ("available", Some(ErrorType::Provisioning)), "{image:?}");
        assert!(status.error_message.contains(said) && status.error_count == 1, "{status:?}");
        assert_eq!(used(&model), None);
        model.host.spec.image = Some(with(Some(&sha256), "raw"));
        model.edited();
        model.run_until("provisioned");
        assert_eq!(model.status().error_message, "");
    }
}

#[test]
fn equal_content_is_used_and_nothing_imported() {
    let mut model = Model::in_state("available");
    model.want_image(Some("http://down/a.raw"));
    model.equal = Some(ready("debian", "d7", "c"));
    model.walk_until(|model| used(model).is_some());
    assert_eq!((used(&model).as_deref(), &model.image), (Some("d7"), &None));
    // Its own comes meanwhile, cut otherwise by another release: what was begun is gone on with.
    let own = model.host.spec.image.clone().expect("an image");
    let spec = ImageSpec { url: own.url.clone(), checksum: own.checksum.clone(), ..ImageSpec::default() };
    model.image = Some(Image { spec, ..ready(&image_name(&own), "other", "c") });
    model.run_until("provisioned");
    assert!(!model.states.contains(&"deprovisioning"), "{:?}", model.states);
    // A failed import of its own is not in the way either.
    let mut model = Model::in_state("available");
    model.want_image(Some("http://down/a.raw"));
    let status = ImageStatus { phase: ImagePhase::Failed, message: Some("refused".into()), ..ImageStatus::default() };
    let own = model.host.spec.image.clone().expect("an image");
    let spec = ImageSpec { url: own.url.clone(), checksum: own.checksum.clone(), ..ImageSpec::default() };
    model.image = Some(Image { status: Some(status), ..Image::new(&image_name(&own), spec) });
    model.equal = Some(ready("debian", "d7", "c"));
    model.run_until("provisioned");
}
