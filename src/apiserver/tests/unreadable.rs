//! An object that cannot be read: it neither vanishes nor is in the way of anything.

use super::*;
use crate::store::NewStore;

const NAMESPACES: &str = "/api/v1/namespaces";
const MAPS: &str = "/api/v1/namespaces/rack/configmaps";

#[tokio::test]
async fn it_is_told_of_and_goes_only_when_it_is_deleted_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let options = || StoreOptions { path: folder.path().join("db"), key_file: folder.path().join("key"), history: 100 };
    let mut new = NewStore::create(options()).unwrap();
    new.damaged("/configmaps", "rack", "torn");
    new.finish(20, []).unwrap();
    let store = Store::open(options()).unwrap();
    let api = ApiServer::new(store, &crate::modules::kinds(), CancellationToken::new()).await.unwrap();
    api.make_namespace("rack").await.unwrap();
    let rig = Rig { api, _folder: folder };

    let torn = path(MAPS, "torn");
    let told = rig.get(&torn).await.expect(500);
    assert!(told["message"].as_str().unwrap().contains("is damaged and cannot be read"), "{told}");
    assert_eq!(rig.get(MAPS).await.expect(200)["items"], json!([]));
    let map = |name: &str, metadata: Value| {
        let mut map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
        map["metadata"]["name"] = name.into();
        map
    };
    rig.call("POST", MAPS, &map("torn", json!({}))).await.expect(409);
    // Its dependents stay: it is not gone.
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "torn", "uid": "u"});
    rig.call("POST", MAPS, &map("owned", json!({ "ownerReferences": [owner] }))).await.expect(201);
    rig.api.sweep().await.unwrap();
    rig.get(&path(MAPS, "owned")).await.expect(200);

    // Nor does its namespace end over it, but everything else in it goes.
    rig.call("DELETE", &path(NAMESPACES, "rack"), &json!({})).await.expect(200);
    for _ in 0..2 {
        rig.api.sweep().await.unwrap();
    }
    rig.get(&path(MAPS, "owned")).await.expect(404);
    let namespace = rig.get(&path(NAMESPACES, "rack")).await.expect(200);
    let conditions = namespace["status"]["conditions"].as_array().unwrap();
    let told = conditions.iter().find(|one| one["type"] == "NamespaceDeletionContentFailure").unwrap();
    assert!(told["message"].as_str().unwrap().contains("/configmaps torn is damaged"), "{told}");

    rig.call("DELETE", &torn, &json!({"preconditions": {"uid": "u"}})).await.expect(500);
    rig.call("DELETE", &torn, &json!({})).await.expect(200);
    rig.get(&torn).await.expect(404);
    rig.call("DELETE", &torn, &json!({})).await.expect(404);
    for _ in 0..2 {
        rig.api.sweep().await.unwrap();
    }
    rig.get(&path(NAMESPACES, "rack")).await.expect(404);
}
