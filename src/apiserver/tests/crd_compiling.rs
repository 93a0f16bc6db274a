//! What the patterns and rules of definitions take of the server, while they are compiled and while they are asked.

use std::pin::pin;

use futures::future::poll_immediate;

use super::*;
use crate::apiserver::schema::precompile;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const GADGETS: &str = "/apis/example.org/v1/namespaces/rack/gadgets";

/// A definition of gadgets with this schema of `spec`.
fn definition(spec: &Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.example.org"},
        "spec": {
            "group": "example.org", "scope": "Namespaced", "names": {"plural": "gadgets", "kind": "Gadget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": spec},
            }}}],
        },
    })
}

/// A definition with these patterns.
fn patterns(texts: impl IntoIterator<Item = String>) -> Value {
    let property = |(index, text)| (format!("a{index}"), json!({"type": "string", "pattern": text}));
    let properties: serde_json::Map<_, _> = texts.into_iter().enumerate().map(property).collect();
    definition(&json!({"type": "object", "properties": properties}))
}

fn gadget(spec: &Value) -> Value {
    json!({"apiVersion": "example.org/v1", "kind": "Gadget", "metadata": {"name": "g"}, "spec": spec})
}

fn dry() -> String {
    format!("{CRDS}?dryRun=All")
}

fn user(name: &str) -> UserIdentity {
    UserIdentity::new(name, Vec::new(), auth::Proof::Certificate)
}

#[tokio::test]
async fn the_only_thread_serves_others_while_a_definition_is_compiled() {
    let rig = Rig::new().await;
    // Each takes longer to compile than a thread that is done at once could make it look.
    let rule = format!("self == self{}", " || 'served' == ''".repeat(400));
    for (written, code) in [
        (patterns((1..9).map(|one| format!(r"^\w{{20}}served{one}$"))), 201),
        (definition(&json!({"type": "object", "x-kubernetes-validations": [{ "rule": rule }]})), 201),
        (patterns((1..9).map(|one| format!(r"^\w{{200}}served{one}$"))), 422),
    ] {
        let uri = dry();
        let mut post = pin!(rig.call("POST", &uri, &written));
        assert!(poll_immediate(&mut post).await.is_none(), "compiled by the thread that serves");
        rig.get("/livez").await.expect(200);
        post.await.expect(code);
    }
}

#[tokio::test]
async fn definitions_are_compiled_one_at_a_time_and_one_of_a_caller() {
    let rig = Rig::new().await;
    let compilers = &rig.api.inner.compilers;
    let other = user("mallory");
    let _busy = compilers.begin(&other).await;
    let turn = compilers.turn().await;
    let uri = dry();
    let written = patterns(["^one-at-a-time$".to_owned()]);
    let mut first = pin!(rig.call("POST", &uri, &written));
    let mut second = pin!(rig.call("POST", &uri, &written));
    tokio::select! {
        biased;
        _ = &mut first => panic!("it did not wait"),
        _ = &mut second => panic!("it did not wait"),
        probe = rig.get("/livez") => assert_eq!(probe.code, 200),
    }
    assert_eq!((compilers.callers(), precompile::compiled("^one-at-a-time$")), (2, 0));
    // Others who write what is no definition wait for nobody.
    rig.call("POST", HOSTS, &host("a")).await.expect(201);
    drop(turn);
    for answer in <[_; 2]>::from(tokio::join!(first, second)) {
        answer.expect(201);
    }
    assert_eq!(compilers.callers(), 1);
}

#[tokio::test]
async fn nothing_more_is_compiled_for_who_went_away() {
    const COUNT: usize = 200;
    let rig = Rig::new().await;
    let uri = dry();
    let written = patterns((0..COUNT).map(|one| format!("^gone-{one}-{}$", r"\p{L}{1,2}")));
    {
        let mut post = pin!(rig.call("POST", &uri, &written));
        eventually(async || {
            assert!(poll_immediate(post.as_mut()).await.is_none());
            precompile::compiled("^gone-") > 0
        })
        .await;
    }
    let _turn =
        tokio::time::timeout(DEADLINE, rig.api.inner.compilers.turn()).await.expect("the turn of who went away ends");
    let (there, callers) = (precompile::compiled("^gone-"), rig.api.inner.compilers.callers());
    assert!(there < COUNT && callers == 0, "{there} were compiled, for {callers}");
}

#[tokio::test]
async fn what_a_definition_may_have_compiled_is_bounded() {
    let rig = Rig::new().await;
    // It would be refused for its bracket, were it read.
    let long = patterns(["a".repeat(900_000) + "("]);
    let refused = rig.call("POST", &dry(), &long).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("it is longer than 4096 bytes"), "{refused:.1000}");
    let many = patterns((0..200).map(|one| format!(r"\p{{L}}{{1,{}}}bounded{one}", 17 + one % 4)));
    for uri in [CRDS, &dry()] {
        let refused = rig.call("POST", uri, &many).await.expect(422);
        assert_eq!(
            refused["message"],
            "CustomResourceDefinition.apiextensions.k8s.io \"gadgets.example.org\" is invalid: spec.versions: Forbidden: \
             the patterns of the schemas must take at most 16 MiB of memory together when they are compiled: use fewer, \
             or ones that repeat less"
        );
    }
    assert!(precompile::compiled(r"\p{L}{1,") < 100);
    let rule = |one: usize| json!({"rule": format!("self != '{}{one}'", "x".repeat(5000))});
    let rules: Vec<_> = (0..60).map(rule).collect();
    let rules = definition(&json!({"type": "string", "x-kubernetes-validations": rules}));
    let refused = rig.call("POST", CRDS, &rules).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("at most 256 KiB of text"), "{refused:.1000}");
    // The same ones again and again are one.
    let often = patterns((0..200).map(|_| r"^\p{L}{1,17}often$".to_owned()));
    rig.call("POST", CRDS, &often).await.expect(201);
    let grown = json!({"spec": {"versions": many["spec"]["versions"]}});
    rig.patch(&path(CRDS, "gadgets.example.org"), MERGE, &grown).await.expect(422);
    rig.patch(&path(CRDS, "gadgets.example.org"), MERGE, &json!({"metadata": {"labels": {"a": "b"}}}))
        .await
        .expect(200);
}

#[tokio::test]
async fn patterns_that_an_object_brings_are_counted() {
    let rig = Rig::new().await;
    let entry = json!({"type": "string", "x-kubernetes-validations": [{"rule": "'x'.matches(self)"}]});
    let spec = json!({"type": "object", "properties": {"l": {"type": "array", "items": entry}}});
    rig.call("POST", CRDS, &definition(&spec)).await.expect(201);
    let with = |texts: Vec<String>| gadget(&json!({ "l": texts }));
    let long = rig.call("POST", GADGETS, &with(vec!["x|".repeat(3000)])).await.expect(422);
    assert!(long["message"].as_str().unwrap().contains("it is longer than 4096 bytes"), "{long:.1000}");
    let many = with((0..100).map(|one| format!(r"x|\w{{10}}brought{one}")).collect());
    let many = rig.call("POST", GADGETS, &many).await.expect(422);
    let message = many["message"].as_str().unwrap();
    assert!(message.contains("running out of cost budget, no further validation rules will be run"), "{message:.1000}");
    rig.call("POST", GADGETS, &with(vec!["^x$".into(), "x|y".into()])).await.expect(201);
}

#[tokio::test]
async fn patterns_are_not_looked_for_in_much_text_without_end() {
    let rig = Rig::new().await;
    let all: Vec<_> = (0..8).map(|one| json!({"pattern": format!(r"looked{one}$|^\w{{10}}\d$")})).collect();
    let text = json!({"type": "string", "allOf": all.clone(), "pattern": "^[a-z]*$"});
    // What is not allowed is not to be had by a pattern that was not looked for.
    let never = json!({"type": "string", "not": {"anyOf": [{"allOf": all}, {"pattern": "^[^b]*$"}]}});
    let spec = json!({"type": "object", "properties": {"a": text, "n": never, "easy": {"type": "string", "pattern": "^[a-z]*$"}}});
    rig.call("POST", CRDS, &definition(&spec)).await.expect(201);
    let much = "a".repeat(100_000);
    for field in ["a", "n"] {
        let refused = rig.call("POST", GADGETS, &gadget(&json!({ (field): much }))).await.expect(422);
        let wanted = format!("spec.{field}: Invalid value: the patterns of the schema would take too long");
        assert!(refused["message"].as_str().unwrap().contains(&wanted), "{refused:.1000}");
    }
    rig.call("POST", GADGETS, &gadget(&json!({"easy": "a".repeat(900_000)}))).await.expect(201);
}
