//! What an image's URL may lead to, on the appliance as a process: no file of its own, no service of its own.

mod process;

use kube::api::{Api, PostParams};
use slipway::api::slipway::{Image, ImagePhase, ImageSpec};

use process::{Appliance, until};

/// How it ends with an image of this source: refused when it is written, or failed, with the reason. An image that comes
/// into the library is a failure of the test.
async fn refused(images: &Api<Image>, name: &str, url: &str, checksum: Option<&str>) -> String {
    let spec = ImageSpec {
        url: url.into(),
        checksum: checksum.map(str::to_owned),
        format: Some("raw".into()),
        ..ImageSpec::default()
    };
    match images.create(&PostParams::default(), &Image::new(name, spec)).await {
        Err(kube::Error::Api(status)) => return status.message.clone(),
        Err(error) => panic!("{url}: {error}"),
        Ok(_) => {}
    }
    until(&format!("{url} to be judged"), async || {
        let status = images.get(name).await.unwrap().status.unwrap_or_default();
        assert_ne!(status.phase, ImagePhase::Ready, "{url} was imported");
        status.message.filter(|_| status.phase == ImagePhase::Failed)
    })
    .await
}

#[tokio::test]
async fn s11_no_file_of_the_appliance_becomes_an_image() {
    let appliance = Appliance::new().await;
    let images = Api::<Image>::all(appliance.client().await);
    let key = appliance.data().join("pki/ca.key");
    assert!(key.is_file());
    for (name, url) in [
        ("key", format!("file://{}", key.display())),
        ("passwd", "file:///etc/passwd".into()),
        ("host", "file://localhost/etc/passwd".into()),
        ("upper", "FILE:///etc/passwd".into()),
    ] {
        let why = refused(&images, name, &url, None).await;
        assert!(why.contains("image.file_folder"), "{url}: {why}");
    }
    let why = refused(&images, "sums", "http://192.0.2.1/i.raw", Some("file:///etc/shadow")).await;
    assert!(why.contains("http://"), "{why}");
}

#[tokio::test]
async fn s12_no_service_of_the_appliance_is_read_as_an_image() {
    let appliance = Appliance::new().await;
    let images = Api::<Image>::all(appliance.client().await);
    let port = appliance.boot.port();
    for (name, host) in
        [("v4", "127.0.0.1"), ("name", "localhost"), ("short", "127.1"), ("mapped", "[::ffff:127.0.0.1]")]
    {
        let url = format!("http://{host}:{port}/boot/ipxe?mac=02-00-00-00-00-01&arch=7");
        let why = refused(&images, name, &url, None).await;
        assert!(why.contains("loopback") && why.contains("image.allow"), "{url}: {why}");
    }
    let sums = format!("http://127.0.0.1:{port}/boot/ca.pem");
    let why = refused(&images, "sums", "http://192.0.2.1/i.raw", Some(&sums)).await;
    assert!(why.contains("loopback"), "{why}");
    // An address of another interface is the appliance's own as well, where there is one.
    let own = slipway::outbound::own_addresses().unwrap().into_iter().find(|ip| ip.is_ipv4() && !ip.is_loopback());
    if let Some(own) = own {
        let why = refused(&images, "own", &format!("http://{own}:{port}/boot/ca.pem"), None).await;
        assert!(why.contains("of the appliance itself"), "{why}");
    }
}

/// The operator may name it; then the guard is open, and boot HTTP gives its scripts to no fetcher of images all the same.
#[tokio::test]
async fn s13_a_boot_script_is_no_image_even_where_the_address_is_allowed() {
    let appliance = Appliance::with("[image]\nallow = [\"127.0.0.1\"]\n").await;
    let images = Api::<Image>::all(appliance.client().await);
    let url = format!("http://{}/boot/ipxe?mac=02-00-00-00-00-01&arch=7", appliance.boot);
    let why = refused(&images, "script", &url, None).await;
    assert!(why.contains("403"), "{why}");
    // It was the script that was refused, not the address.
    let url = format!("http://{}/boot/ca.pem", appliance.boot);
    let spec = ImageSpec { url, format: Some("raw".into()), ..ImageSpec::default() };
    images.create(&PostParams::default(), &Image::new("allowed", spec)).await.unwrap();
    until("what is allowed is imported", async || {
        let status = images.get("allowed").await.unwrap().status.unwrap_or_default();
        assert_ne!(status.phase, ImagePhase::Failed, "{:?}", status.message);
        (status.phase == ImagePhase::Ready).then_some(())
    })
    .await;
}
