//! DataImages through the API that their users have.

use std::sync::Mutex;

use async_trait::async_trait;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ObjectMeta, PostParams};

use super::*;
use crate::api::metal3::{BareMetalHostSpec, DataImageSpec};
use crate::apiserver::ApiServer;
use crate::bmc::{BootDevice, FirmwareMode, PowerAction, PowerState};
use crate::modules::kinds;
use crate::store::{Store, StoreOptions};

const ISO: &str = "http://images.test/data.iso";

/// A drive that keeps what was done with it.
#[derive(Default)]
struct Drive {
    calls: Mutex<Vec<String>>,
    /// What it shows, where it shows anything.
    shows: Mutex<Option<String>>,
    /// What else happens while it is filled.
    meanwhile: Mutex<Option<Api<DataImage>>>,
    fault: Mutex<Option<BmcError>>,
}

impl Drive {
    fn call(&self, what: String) -> Result<(), BmcError> {
        self.calls.lock().unwrap().push(what);
        self.fault.lock().unwrap().take().map_or(Ok(()), Err)
    }
}

#[async_trait]
impl Bmc for Drive {
    async fn power(&self) -> Result<PowerState, BmcError> {
        Ok(PowerState::Off)
    }

    async fn set_power(&self, _: PowerAction) -> Result<(), BmcError> {
        Ok(())
    }

    async fn set_boot_device(&self, _: BootDevice, _: FirmwareMode) -> Result<(), BmcError> {
        Ok(())
    }

    async fn insert_media(&self, url: &str) -> Result<(), BmcError> {
        let images = self.meanwhile.lock().unwrap().take();
        if let Some(images) = images {
            images.delete("h", &DeleteParams::default()).await.unwrap();
        }
        self.call(format!("insert {url}"))
    }

    async fn media(&self) -> Result<Option<String>, BmcError> {
        let shown = self.shows.lock().unwrap().clone();
        let unknown = || BmcError::Unsupported { peer: "bmc".into(), what: "say what its virtual CD is".into() };
        shown.map(Some).ok_or_else(unknown)
    }

    async fn eject_media(&self) -> Result<(), BmcError> {
        self.call("eject".into())
    }
}

struct Site {
    client: Client,
    shutdown: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Site {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 100 };
        let shutdown = CancellationToken::new();
        let api = ApiServer::new(Store::open(options).unwrap(), &kinds(), shutdown.clone()).await.unwrap();
        api.add_admission("metal3.io/dataimages", Arc::new(admit));
        let client = api.client();
        tokio::spawn(async move { api.run().await });
        let mut watches = Watches::default();
        let images = DataImages::new(&mut watches);
        tokio::spawn(watches.run(client.clone(), shutdown.clone()));
        tokio::spawn(run(client.clone(), images, shutdown.clone()));
        Self { client, shutdown, _folder: folder }
    }

    fn images(&self) -> Api<DataImage> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn hosts(&self) -> Api<BareMetalHost> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn create(&self, url: &str) -> Result<DataImage, kube::Error> {
        let image = DataImage::new("h", DataImageSpec { url: url.into() });
        self.images().create(&PostParams::default(), &image).await
    }

    async fn status(&self) -> DataImageStatus {
        self.images().get("h").await.unwrap().status.unwrap_or_default()
    }

    async fn until(&self, what: &str, met: impl AsyncFn() -> bool) {
        let wait = async {
            while !met().await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), wait).await.unwrap_or_else(|_| panic!("not in time: {what}"));
    }
}

#[tokio::test]
async fn an_image_is_attached_exchanged_and_taken_out_at_power_on() {
    let site = Site::new().await;
    let (images, drive) = (site.images(), Drive::default());
    before_power_on(&images, "h", true, &drive).await.unwrap();
    assert!(drive.calls.lock().unwrap().is_empty(), "a host without a DataImage");

    let host = BareMetalHost::new("h", BareMetalHostSpec::default());
    let host = site.hosts().create(&PostParams::default(), &host).await.unwrap();
    site.create(ISO).await.unwrap();
    site.until("it is held by its host", async || {
        let image = images.get("h").await.unwrap();
        image.finalizers() == [FINALIZER_DATA_IMAGE]
            && image.owner_references().iter().any(|o| o.uid == host.uid().unwrap())
    })
    .await;

    *drive.fault.lock().unwrap() = Some(BmcError::Unreachable { peer: "bmc".into(), reason: "it is away".into() });
    let failed = before_power_on(&images, "h", true, &drive).await.unwrap_err();
    assert!(failed.to_string().contains("it is away"), "the host waits: {failed}");
    let status = site.status().await;
    assert_eq!((status.error.count, status.attached_image), (1, None));
    assert!(status.error.message.contains("it is away") && status.last_reconciled.is_some());

    before_power_on(&images, "h", true, &drive).await.unwrap();
    let status = site.status().await;
    assert_eq!(status.attached_image, Some(AttachedImage { url: ISO.into() }));
    assert_eq!(status.error, DataImageError::default());

    let other = json!({ "spec": { "url": "https://images.test/other.iso" } });
    images.patch("h", &PatchParams::default(), &Patch::Merge(other)).await.unwrap();
    before_power_on(&images, "h", true, &drive).await.unwrap();
    assert_eq!(site.status().await.attached_image.unwrap().url, "https://images.test/other.iso");

    images.delete("h", &DeleteParams::default()).await.unwrap();
    assert!(images.get_opt("h").await.unwrap().is_some(), "held until the drive is empty");
    before_power_on(&images, "h", true, &drive).await.unwrap();
    site.until("it is gone", async || images.get_opt("h").await.unwrap().is_none()).await;
    let calls = drive.calls.lock().unwrap().clone();
    let insert = format!("insert {ISO}");
    assert_eq!(calls, [&insert, &insert, "insert https://images.test/other.iso", "eject"]);
}

#[tokio::test]
async fn an_image_that_is_deleted_while_it_is_put_in_is_taken_out_later() {
    let site = Site::new().await;
    let (images, drive) = (site.images(), Drive::default());
    site.hosts().create(&PostParams::default(), &BareMetalHost::new("h", BareMetalHostSpec::default())).await.unwrap();
    site.create(ISO).await.unwrap();
    let held = async || images.get("h").await.unwrap().finalizers() == [FINALIZER_DATA_IMAGE];
    site.until("it is held by its host", held).await;
    *drive.meanwhile.lock().unwrap() = Some(images.clone());
    before_power_on(&images, "h", true, &drive).await.unwrap();
    let image = images.get("h").await.unwrap();
    assert!(image.metadata.deletion_timestamp.is_some(), "it was deleted");
    assert_eq!(
        decide(&image, site.hosts().get_opt("h").await.unwrap().as_ref(), Timestamp::UNIX_EPOCH),
        DataImageStep::Wait
    );
    before_power_on(&images, "h", true, &drive).await.unwrap();
    site.until("it is gone", async || images.get_opt("h").await.unwrap().is_none()).await;
    assert_eq!(*drive.calls.lock().unwrap(), [format!("insert {ISO}"), "eject".into()]);
}

#[tokio::test]
async fn what_somebody_else_put_into_the_drive_stays_there() {
    for (shown, stays) in [
        ("http://images.test/rescue.iso", true),
        (ISO, false),
        ("data.iso", false),
        ("http://images.test/data.iso?X-Amz-Signature=s", false),
        ("", false),
    ] {
        let site = Site::new().await;
        let (images, drive) = (site.images(), Drive::default());
        let host = BareMetalHost::new("h", BareMetalHostSpec::default());
        site.hosts().create(&PostParams::default(), &host).await.unwrap();
        site.create(ISO).await.unwrap();
        before_power_on(&images, "h", true, &drive).await.unwrap();
        *drive.shows.lock().unwrap() = Some(shown.into());
        eject(&images, "h", &drive).await.unwrap();
        assert_eq!(drive.calls.lock().unwrap().len(), if stays { 1 } else { 2 }, "{shown:?}");
        assert_eq!(site.status().await.attached_image, None, "{shown:?}");
    }
}

/// Who may read the objects may read the URL; who may read the log may not.
#[tokio::test]
async fn the_log_and_errors_show_no_secret_of_a_url() {
    use std::io;
    use tracing_subscriber::fmt::MakeWriter;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);
    impl io::Write for Written {
        fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(piece);
            Ok(piece.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    impl<'w> MakeWriter<'w> for Written {
        type Writer = Self;
        fn make_writer(&'w self) -> Self {
            self.clone()
        }
    }
    const SECRET: &str = "https://user:s3cret@images.test/data.iso?X-Amz-Signature=s1gned#fr4gment";
    let written = Written::default();
    let log = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_writer(written.clone()).finish();
    let site = Site::new().await;
    site.create(SECRET).await.unwrap();
    let drive = Drive::default();
    let guard = tracing::subscriber::set_default(log);
    let said = BmcError::Protocol { peer: "bmc".into(), reason: format!("HTTP 400: cannot mount {SECRET}") };
    *drive.fault.lock().unwrap() = Some(said);
    before_power_on(&site.images(), "h", true, &drive).await.unwrap_err();
    let message = site.status().await.error.message;
    // Another test may have met a line first, when nobody listened yet.
    tracing::callsite::rebuild_interest_cache();
    before_power_on(&site.images(), "h", true, &drive).await.unwrap();
    drop(guard);
    let log = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("virtual CD") && log.contains("https://images.test/data.iso"), "{log}");
    assert!(message.contains("https://images.test/data.iso"), "{message}");
    for secret in ["s3cret", "s1gned", "fr4gment"] {
        assert!(!log.contains(secret), "{log}");
        assert!(!message.contains(secret), "{message}");
    }
    // Controllers compare these two.
    assert_eq!(site.status().await.attached_image, Some(AttachedImage { url: SECRET.into() }));
}

#[tokio::test]
async fn a_bmc_without_a_drive_is_said_and_keeps_no_host_off() {
    let site = Site::new().await;
    site.hosts().create(&PostParams::default(), &BareMetalHost::new("h", BareMetalHostSpec::default())).await.unwrap();
    site.create(ISO).await.unwrap();
    let drive = Drive::default();
    *drive.fault.lock().unwrap() = Some(BmcError::Unsupported { peer: "bmc".into(), what: "insert a CD".into() });
    before_power_on(&site.images(), "h", true, &drive).await.unwrap();
    let status = site.status().await;
    assert_eq!((status.error.count, status.error.message.as_str()), (1, "the BMC at bmc cannot insert a CD"));
}

#[tokio::test]
async fn a_url_that_no_bmc_could_read_is_refused() {
    let site = Site::new().await;
    for url in ["", "data.iso", "file:///data.iso", "http://"] {
        let refused = site.create(url).await.unwrap_err().to_string();
        assert!(refused.contains("spec.url: Invalid value") && refused.contains("http:// or https://"), "{refused}");
    }
}

#[test]
fn who_holds_an_image_and_when_it_is_let_go() {
    let host = |annotation: Option<&str>| {
        let mut host = BareMetalHost::new("h", BareMetalHostSpec::default());
        host.metadata.uid = Some("u".into());
        host.metadata.annotations = annotation.map(|key| [(key.to_owned(), String::new())].into());
        host
    };
    let image = |held: bool, deleted: bool, attached: bool| {
        let mut image = DataImage::new("h", DataImageSpec { url: ISO.into() });
        image.metadata = ObjectMeta {
            finalizers: held.then(|| vec![FINALIZER_DATA_IMAGE.to_owned()]),
            owner_references: held.then(|| vec![OwnerReference { uid: "u".into(), ..OwnerReference::default() }]),
            deletion_timestamp: deleted.then_some(Time(Timestamp::UNIX_EPOCH)),
            ..image.metadata
        };
        let attached_image = attached.then(|| AttachedImage { url: ISO.into() });
        image.status = Some(DataImageStatus { attached_image, ..DataImageStatus::default() });
        image
    };
    let (plain, paused, detached) = (host(None), host(Some(ANNOTATION_PAUSED)), host(Some(ANNOTATION_DETACHED)));
    for (image, host, want) in [
        (image(false, false, false), None, DataImageStep::Wait),
        (image(true, false, true), None, DataImageStep::LetGo),
        (image(true, true, true), None, DataImageStep::LetGo),
        (image(false, false, false), Some(&plain), DataImageStep::Hold),
        (image(true, false, true), Some(&plain), DataImageStep::Rest),
        (image(true, true, true), Some(&plain), DataImageStep::Wait),
        (image(true, true, false), Some(&plain), DataImageStep::LetGo),
        (image(false, true, false), Some(&plain), DataImageStep::Rest),
        (image(false, false, false), Some(&paused), DataImageStep::Wait),
        (image(true, true, false), Some(&paused), DataImageStep::Wait),
        (image(true, true, true), Some(&detached), DataImageStep::LetGo),
        (image(true, false, true), Some(&detached), DataImageStep::Rest),
    ] {
        assert_eq!(decide(&image, host, Timestamp::UNIX_EPOCH), want, "{image:?} {host:?}");
    }
}

#[test]
fn a_deleted_image_waits_for_its_host_and_not_for_ever() {
    use crate::api::metal3::{BareMetalHostStatus, ErrorType, ProvisionStatus};
    let minutes = |minutes: i64| Timestamp::UNIX_EPOCH + Duration::from_secs(60).saturating_mul(minutes as u32);
    let mut image = DataImage::new("h", DataImageSpec { url: ISO.into() });
    image.metadata.finalizers = Some(vec![FINALIZER_DATA_IMAGE.to_owned()]);
    image.metadata.deletion_timestamp = Some(Time(minutes(0)));
    let attached_image = Some(AttachedImage { url: ISO.into() });
    image.status = Some(DataImageStatus { attached_image, ..DataImageStatus::default() });
    use ProvisioningState::{Available, ExternallyProvisioned, Provisioned};
    // State, error and its count, minute of the last change, minute now.
    for (state, error, count, updated, now, want) in [
        (Provisioned, None, 0, 0, 100_000, DataImageStep::Wait),
        (ExternallyProvisioned, None, 0, 0, 100_000, DataImageStep::Wait),
        (Provisioned, Some(ErrorType::PowerManagement), 3, 99, 100, DataImageStep::Wait),
        (Provisioned, Some(ErrorType::PowerManagement), 4, 99, 100, DataImageStep::GiveUp),
        (Provisioned, Some(ErrorType::Registration), 1, 99, 100, DataImageStep::Wait),
        (Provisioned, Some(ErrorType::Registration), 1, 80, 100, DataImageStep::GiveUp),
        (Available, None, 0, 0, 14, DataImageStep::Wait),
        (Available, None, 0, 0, 16, DataImageStep::GiveUp),
    ] {
        let mut host = BareMetalHost::new("h", BareMetalHostSpec::default());
        host.status = Some(BareMetalHostStatus {
            provisioning: ProvisionStatus { state, ..ProvisionStatus::default() },
            error_type: error,
            error_count: count,
            last_updated: Some(Time(minutes(updated))),
            ..BareMetalHostStatus::default()
        });
        assert_eq!(decide(&image, Some(&host), minutes(now)), want, "{state:?} {error:?} {count} {updated} {now}");
        host.metadata.deletion_timestamp = Some(Time(minutes(0)));
        assert_eq!(decide(&image, Some(&host), minutes(now)), DataImageStep::Wait, "the host has its own way out");
    }
}
