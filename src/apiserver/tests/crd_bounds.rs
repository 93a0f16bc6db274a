//! What definitions, and the defaults in them, may take of the memory.

use super::*;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const BOMBS: &str = "/apis/example.org/v1/namespaces/rack/bombs";

/// A definition of a plural with a schema of `spec`.
fn definition(plural: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.example.org")},
        "spec": {
            "group": "example.org", "scope": "Namespaced",
            "names": {"plural": plural, "singular": format!("{plural}-one"), "kind": format!("Kind-{plural}")},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": spec},
            }}}],
        },
    })
}

/// A schema of so many texts.
fn texts(count: usize) -> Value {
    let properties: serde_json::Map<_, _> =
        (0..count).map(|one| (format!("a{one}"), json!({"type": "string"}))).collect();
    json!({"type": "object", "properties": properties})
}

/// A schema of a list whose items have a text.
fn items(text: &Value) -> Value {
    json!({"type": "object", "properties": {"l": {"type": "array", "items":
        {"type": "object", "properties": {"a": text}}}}})
}

fn bomb(name: &str, count: usize) -> Value {
    let empty: Vec<Value> = (0..count).map(|_| json!({})).collect();
    json!({"apiVersion": "example.org/v1", "kind": "Kind-bombs", "metadata": {"name": name}, "spec": {"l": empty}})
}

#[tokio::test]
async fn defaults_that_came_later_make_no_object_huge() {
    let mut rig = Rig::new().await;
    rig.call("POST", CRDS, &definition("bombs", &items(&json!({"type": "string"})))).await.expect(201);
    rig.call("POST", BOMBS, &bomb("b", 3000)).await.expect(201);
    let mut held = bomb("held", 3000);
    held["metadata"]["finalizers"] = json!(["example.org/hold"]);
    rig.call("POST", BOMBS, &held).await.expect(201);
    let large = definition("bombs", &items(&json!({"type": "string", "default": "x".repeat(10_000)})));
    let patch = json!({"spec": {"versions": large["spec"]["versions"]}});
    rig.patch(&path(CRDS, "bombs.example.org"), MERGE, &patch).await.expect(200);
    for at in [path(BOMBS, "b"), BOMBS.to_owned()] {
        let text = rig.get(&at).await.text;
        assert!(text.contains("xxxx") && text.len() < 3 << 20, "{} bytes of {at}", text.len());
    }
    let refused = rig.call("POST", BOMBS, &bomb("c", 3000)).await.expect(413);
    assert!(refused["message"].as_str().unwrap().contains("the defaults of its schema"), "{refused}");
    rig.call("POST", BOMBS, &bomb("d", 3)).await.expect(201);
    // As a table, too.
    let request = http::Request::get(format!("{BOMBS}?includeObject=Object"))
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    let table = rig.send(admin(), request, Body::empty()).await;
    assert!(table.code == 200 && table.text.len() < 4 << 20, "{} bytes", table.text.len());
    // Its end, and that of its definition, is not held up by what it would be.
    rig.call("DELETE", &path(CRDS, "bombs.example.org"), &json!({})).await.expect(200);
    rig.restart().await;
    rig.api.sweep().await.unwrap();
    rig.get(&path(BOMBS, "b")).await.expect(404);
    rig.patch(&path(BOMBS, "held"), MERGE, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    rig.api.sweep().await.unwrap();
    rig.get(&path(CRDS, "bombs.example.org")).await.expect(404);
}

impl Rig {
    /// Lets definitions take so many bytes together.
    async fn limit_definitions(&self, limit: usize) {
        self.api.inner.definitions.lock().await.limit = limit;
    }

    async fn names_served(&self) -> Vec<String> {
        let registry = self.api.registry();
        registry.all().iter().filter(|one| one.custom.is_some()).map(|one| one.plural.clone()).collect()
    }
}

/// A definition of `k<number>` that takes about 850 kB.
fn large(number: usize) -> Value {
    definition(&format!("k{number}"), &texts(1000))
}

#[tokio::test]
async fn definitions_have_a_bound_together() {
    let mut rig = Rig::new().await;
    rig.limit_definitions(3 << 20).await;
    for number in 0..3 {
        rig.call("POST", CRDS, &large(number)).await.expect(201);
    }
    let refused = rig.call("POST", CRDS, &large(3)).await.expect(507);
    assert_eq!(
        (refused["reason"].as_str(), refused["message"].as_str()),
        (
            Some("InsufficientStorage"),
            Some(
                "the CustomResourceDefinitions together, with their schemas, take the 3 MiB of memory that they may: \
                 nothing can be made or grow until some are deleted"
            )
        )
    );
    rig.get(&path(CRDS, "k3.example.org")).await.expect(404);
    // What is there may not grow either, but for a little; small ones still come, and all are served.
    let grown = json!({"spec": {"versions": definition("k0", &texts(2000))["spec"]["versions"]}});
    rig.patch(&path(CRDS, "k0.example.org"), MERGE, &grown).await.expect(507);
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    rig.patch(&path(CRDS, "k0.example.org"), MERGE, &labels).await.expect(200);
    rig.call("POST", CRDS, &definition("small", &texts(1))).await.expect(201);
    let shrunk = json!({"spec": {"versions": definition("k0", &texts(900))["spec"]["versions"]}});
    let before = rig.api.registry();
    rig.patch(&path(CRDS, "k0.example.org"), MERGE, &shrunk).await.expect(200);
    // Of the others nothing was compiled again.
    let kept = |plural: &str| {
        let find = |registry: &ResourceRegistry| registry.find("example.org", "v1", plural).cloned().unwrap();
        Arc::ptr_eq(&find(&before), &find(&rig.api.registry()))
    };
    assert_eq!(["k0", "k1", "k2", "small"].map(kept), [false, true, true, true]);
    for at in ["/openapi/v2", "/openapi/v3/apis/example.org/v1"] {
        let document = rig.get(at).await.expect(200);
        let of = if at == "/openapi/v2" { &document["definitions"] } else { &document["components"]["schemas"] };
        for plural in ["k0", "k1", "k2", "small"] {
            let schema = &of[format!("org.example.v1.Kind-{plural}")]["properties"]["spec"]["properties"];
            assert_eq!(schema["a0"], json!({"type": "string"}), "{at} {plural}");
        }
    }
    rig.restart().await;
    assert_eq!(rig.names_served().await, ["k0", "k1", "k2", "small"]);
    // At the bound all can be deleted, and then others come.
    rig.limit_definitions(0).await;
    for plural in ["k0", "k1", "k2", "small"] {
        rig.call("DELETE", &path(CRDS, &format!("{plural}.example.org")), &json!({})).await.expect(200);
    }
    rig.api.sweep().await.unwrap();
    assert!(rig.names_served().await.is_empty());
    rig.limit_definitions(3 << 20).await;
    rig.call("POST", CRDS, &large(3)).await.expect(201);
}

#[tokio::test]
async fn definitions_beyond_the_bound_are_not_served_and_can_be_deleted() {
    let rig = Rig::new().await;
    for number in 0..3 {
        rig.call("POST", CRDS, &large(number)).await.expect(201);
    }
    let object = json!({"apiVersion": "example.org/v1", "kind": "Kind-k2", "metadata": {"name": "a"}});
    let objects = "/apis/example.org/v1/namespaces/rack/k2";
    rig.call("POST", objects, &object).await.expect(201);
    // As a server that starts on a database in which there are too many.
    *rig.api.inner.definitions.lock().await = crd::CompiledDefinitions::default();
    rig.limit_definitions(2 << 20).await;
    rig.api.install_definitions(&crate::modules::kinds()).await.unwrap();
    assert_eq!(rig.names_served().await, ["k0", "k1"]);
    rig.get(objects).await.expect(404);
    rig.call("DELETE", &path(CRDS, "k2.example.org"), &json!({})).await.expect(200);
    rig.api.sweep().await.unwrap();
    rig.get(&path(CRDS, "k2.example.org")).await.expect(404);
    assert!(rig.api.store().list("example.org/k2", None).objects.is_empty());
    // Room for one is room for another that waited.
    rig.limit_definitions(1 << 20).await;
    *rig.api.inner.definitions.lock().await = crd::CompiledDefinitions::default();
    rig.limit_definitions(1 << 20).await;
    rig.api.install_definitions(&crate::modules::kinds()).await.unwrap();
    assert_eq!(rig.names_served().await, ["k0"]);
    rig.call("DELETE", &path(CRDS, "k0.example.org"), &json!({})).await.expect(200);
    rig.api.sweep().await.unwrap();
    assert_eq!(rig.names_served().await, ["k1"]);
}

#[tokio::test]
async fn a_default_is_bounded_with_the_defaults_within_it() {
    let rig = Rig::new().await;
    let mut spec = items(&json!({"type": "string", "default": "x".repeat(1000)}));
    spec["properties"]["l"]["default"] = json!(vec![json!({}); 3000]);
    let refused = rig.call("POST", CRDS, &definition("bombs", &spec)).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("completed with the defaults within it"), "{refused}");
    spec["properties"]["l"]["default"] = json!(vec![json!({}); 30]);
    rig.call("POST", CRDS, &definition("bombs", &spec)).await.expect(201);
}

/// A definition of nearly as many bytes as an object may have.
fn huge(plural: &str) -> Value {
    let mut huge = definition(plural, &json!({"type": "object"}));
    let text = "x".repeat((1 << 20) - (70 << 10));
    huge["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = text.into();
    huge
}

#[tokio::test]
async fn a_definition_leaves_room_for_what_the_server_writes_into_it() {
    let rig = Rig::new().await;
    let mut many = definition("many", &json!({"type": "object"}));
    for field in ["categories", "shortNames"] {
        many["spec"]["names"][field] = (0..17).map(|one| json!(format!("n{one}"))).collect();
        let refused = rig.call("POST", CRDS, &many).await.expect(422);
        assert!(refused["message"].as_str().unwrap().contains("more than 16 are not supported"), "{refused}");
        many["spec"]["names"][field] = (0..16).map(|one| json!(format!("{field}{one}").to_lowercase())).collect();
    }
    let mut large = huge("larges");
    large["spec"]["names"]["categories"] = many["spec"]["names"]["categories"].clone();
    rig.call("POST", CRDS, &large).await.expect(201);
    let mut larger = huge("largers");
    larger["metadata"]["annotations"] = json!({"example.org/more": "y".repeat(10 << 10)});
    let refused = rig.call("POST", CRDS, &larger).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("that a definition may have"), "{refused}");
    rig.call("POST", CRDS, &many).await.expect(201);
    assert_eq!(rig.names_served().await, ["larges", "many"]);
}

#[tokio::test]
async fn a_definition_whose_status_cannot_be_written_costs_itself_alone() {
    let rig = Rig::new().await;
    rig.call("POST", CRDS, &definition("befores", &json!({"type": "object"}))).await.expect(201);
    // As an older version stored it, and one of its own that somebody filled with labels.
    let mut grown = huge("growns");
    grown["spec"]["names"]["categories"] = (0..1400).map(|one| json!(format!("c{one}-{}", "x".repeat(40)))).collect();
    grown["metadata"]["uid"] = "1".into();
    let own = "baremetalhosts.metal3.io";
    let mut filled = rig.api.store().get("apiextensions.k8s.io/customresourcedefinitions", "", own).unwrap().value();
    filled["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "".into();
    let rest = (1 << 20) - filled.to_string().len() - 30;
    filled["metadata"]["annotations"]["example.org/filled"] = "z".repeat(rest).into();
    for value in [grown, filled] {
        let name = value["metadata"]["name"].as_str().unwrap().to_owned();
        let there = rig.api.store().get("apiextensions.k8s.io/customresourcedefinitions", "", &name);
        let change = Mutation {
            resource: "apiextensions.k8s.io/customresourcedefinitions".into(),
            namespace: String::new(),
            name,
            expect: there.map_or(Expect::Absent, |there| Expect::Revision(there.revision)),
            value: Some(value),
        };
        rig.api.store().write(change).await.unwrap();
    }
    *rig.api.inner.definitions.lock().await = crd::CompiledDefinitions::default();
    rig.api.install_definitions(&crate::modules::kinds()).await.unwrap();
    rig.call("POST", CRDS, &definition("afters", &json!({"type": "object"}))).await.expect(201);
    assert_eq!(rig.names_served().await, ["afters", "befores"]);
    let built_in = rig.get(&path(CRDS, own)).await.expect(200);
    assert!(built_in["metadata"]["annotations"].get("example.org/filled").is_none());
    for name in ["growns", "befores"] {
        rig.call("DELETE", &path(CRDS, &format!("{name}.example.org")), &json!({})).await.expect(200);
    }
    rig.api.sweep().await.unwrap();
    rig.get(&path(CRDS, "befores.example.org")).await.expect(404);
    rig.get(&path(CRDS, "growns.example.org")).await.expect(404);
}

#[tokio::test]
async fn discovery_counts_for_who_takes_it_slowly() {
    let rig = Rig::new().await;
    let mut many = definition("many", &json!({"type": "object"}));
    let one = many["spec"]["versions"][0].clone();
    many["spec"]["versions"] = (1..33)
        .map(|number| {
            let mut version = one.clone();
            (version["name"], version["storage"]) = (format!("v{number}").into(), (number == 1).into());
            version
        })
        .collect();
    rig.call("POST", CRDS, &many).await.expect(201);
    let held = || {
        let mut registry = prometheus_client::registry::Registry::default();
        rig.api.inner.response_memory.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("slipway_answer_bytes ")).unwrap();
        line.parse::<usize>().unwrap()
    };
    let ask = async || {
        let request = http::Request::get("/apis")
            .header("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
            .extension(admin().unwrap())
            .body(Body::empty())
            .unwrap();
        rig.api.router().oneshot(request).await.unwrap()
    };
    let first = ask().await;
    let after_one = held();
    assert!(after_one > response_memory::COUNTED_FROM, "{after_one}");
    let second = ask().await;
    assert_eq!(held(), 2 * after_one);
    drop(first);
    let text = axum::body::to_bytes(second.into_body(), usize::MAX).await.unwrap();
    assert_eq!(held(), 0);
    let document: Value = serde_json::from_slice(&text).unwrap();
    let groups = document["items"].as_array().unwrap();
    let mine = groups.iter().find(|group| group["metadata"]["name"] == "example.org").unwrap();
    assert_eq!(mine["versions"].as_array().unwrap().len(), 32);
}
