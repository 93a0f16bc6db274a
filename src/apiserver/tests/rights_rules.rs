//! What roles and bindings may come to, and what it takes to judge a request by them.

use tokio::task::JoinSet;

use super::access_rules::{binding, named, role, rule, user};
use super::*;

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/rack/roles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/rack/rolebindings";

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("n{number}")).collect()
}

fn named_rule(names: &[String]) -> Value {
    let mut rule = rule(&["get"], "", "secrets");
    rule["resourceNames"] = names.into();
    rule
}

fn message(answer: &Value) -> &str {
    answer["message"].as_str().unwrap_or_default()
}

impl Rig {
    /// Writes past the API, as an earlier version may have written.
    async fn keep(&self, plural: &str, mut object: Value) {
        object["metadata"]["namespace"] = "rack".into();
        object["metadata"]["uid"] = uuid::Uuid::new_v4().to_string().into();
        let change = Mutation {
            resource: format!("rbac.authorization.k8s.io/{plural}").into(),
            namespace: "rack".into(),
            name: object["metadata"]["name"].as_str().unwrap().into(),
            expect: Expect::Absent,
            value: Some(object),
        };
        self.api.store().write(change).await.unwrap();
    }
}

#[tokio::test]
async fn a_role_is_no_longer_than_can_be_looked_through() {
    let rig = Rig::new().await;
    for (name, rules, wanted) in [
        (
            "names",
            json!([named_rule(&names(60_000))]),
            "rules[0].resourceNames: Too many: 60000: must have at most 1000",
        ),
        (
            "rules",
            Value::from(vec![rule(&["get"], "", "secrets"); 1001]),
            "rules: Too many: 1001: must have at most 1000",
        ),
        ("words", Value::from(vec![named_rule(&names(1000)); 11]), "rules: Too many: 11033: must have at most 10000"),
    ] {
        let refused = rig.call("POST", ROLES, &role("Role", name, &rules)).await.expect(422);
        assert!(message(&refused).contains(wanted), "{name}: {}", message(&refused));
    }
    let subjects: Vec<Value> = names(1001).iter().map(|name| named("User", name)).collect();
    let mut crowd = binding("RoleBinding", "crowd", "ClusterRole/view", &Value::Null);
    crowd["subjects"] = subjects.into();
    let refused = rig.call("POST", BINDINGS, &crowd).await.expect(422);
    assert!(message(&refused).contains("subjects: Too many: 1001: must have at most 1000"), "{}", message(&refused));

    // What is there counts, and may be made smaller, or be kept as it is.
    rig.keep("roles", role("Role", "large", &json!([named_rule(&names(60_000))]))).await;
    rig.keep("rolebindings", binding("RoleBinding", "large", "Role/large", &named("User", "eve"))).await;
    rig.get(&path(ROLES, "large")).await.expect(200);
    let read = async |name: &str| rig.as_user(user("eve", &[]), "GET", &path(SECRETS, name), &Value::Null).await.code;
    assert_eq!((read("n0").await, read("n59999").await, read("n60000").await), (404, 404, 403));
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    rig.patch(&path(ROLES, "large"), MERGE, &labels).await.expect(200);
    rig.patch(&path(ROLES, "large"), MERGE, &json!({"rules": [named_rule(&names(60_001))]})).await.expect(422);
    rig.patch(&path(ROLES, "large"), MERGE, &json!({"rules": [named_rule(&names(50_000))]})).await.expect(200);
    assert_eq!((read("n0").await, read("n59999").await), (404, 403));
}

#[tokio::test]
async fn the_roles_of_a_namespace_are_no_more_than_can_be_looked_through() {
    let rig = Rig::new().await;
    let long = Value::from(vec![rule(&["get"], "x.y", "z"); 1000]);
    for number in 0..5 {
        rig.call("POST", ROLES, &role("Role", &format!("r{number}"), &long)).await.expect(201);
    }
    let more = role("Role", "more", &json!([rule(&["get"], "", "secrets")]));
    let refused = rig.call("POST", ROLES, &more).await.expect(403);
    assert!(message(&refused).contains("the Roles of namespace \"rack\" would have 5001 rules"), "{refused}");
    let elsewhere = ROLES.replace("rack", "default");
    rig.call("POST", &elsewhere, &more).await.expect(201);
    // What does not grow is written, and what is deleted gives room.
    rig.patch(&path(ROLES, "r0"), MERGE, &json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    rig.call("DELETE", &path(ROLES, "r0"), &json!({})).await.expect(200);
    rig.call("POST", ROLES, &more).await.expect(201);

    let crowd = |number: usize| {
        let mut crowd = binding("RoleBinding", &format!("b{number}"), "ClusterRole/view", &Value::Null);
        crowd["subjects"] = names(1000).iter().map(|name| named("User", name)).collect();
        crowd
    };
    for number in 0..10 {
        rig.call("POST", BINDINGS, &crowd(number)).await.expect(201);
    }
    let one = binding("RoleBinding", "one", "ClusterRole/view", &named("User", "eve"));
    let refused = rig.call("POST", BINDINGS, &one).await.expect(403);
    assert!(message(&refused).contains("would have 10001 subjects"), "{refused}");
    rig.call("DELETE", &path(BINDINGS, "b0"), &json!({})).await.expect(200);
    rig.call("POST", BINDINGS, &one).await.expect(201);
}

#[tokio::test]
async fn who_may_nothing_leaves_places_for_the_others() {
    const MANY: usize = 1000;
    let rig = Rig::new().await;
    let everybody = named("Group", auth::AUTHENTICATED);
    for number in 0..5 {
        let (name, rules) = (format!("r{number}"), Value::from(vec![named_rule(&names(1)); 1000]));
        rig.call("POST", ROLES, &role("Role", &name, &rules)).await.expect(201);
        let given = binding("RoleBinding", &name, &format!("Role/{name}"), &everybody);
        rig.call("POST", BINDINGS, &given).await.expect(201);
    }
    let account = "system:serviceaccount:rack:bot";
    for speaks_for in [None, Some(account)] {
        let mut flood = JoinSet::new();
        for _ in 0..MANY {
            let mut request = http::Request::get(path(SECRETS, "nope"));
            if let Some(other) = speaks_for {
                request = request.header("impersonate-user", other);
            }
            let mut request = request.body(Body::empty()).unwrap();
            request.extensions_mut().insert(user("nobody", &[]).unwrap());
            flood.spawn(rig.api.router().oneshot(request));
        }
        let other = rig.as_user(user("somebody", &[]), "GET", &path(SECRETS, "n0"), &Value::Null).await;
        assert_eq!(other.code, 404, "{}", other.text);
        let (mut judged, mut refused) = (0, 0);
        while let Some(answer) = tokio::time::timeout(DEADLINE, flood.join_next()).await.unwrap() {
            match answer.unwrap().unwrap().status().as_u16() {
                403 => judged += 1,
                429 => refused += 1,
                code => panic!("{code}"),
            }
        }
        assert_eq!((judged, refused), (inflight::READS * 3 / 4, MANY - inflight::READS * 3 / 4), "{speaks_for:?}");
    }
}

#[tokio::test]
async fn a_refusal_does_not_name_every_role_that_is_not_there() {
    let rig = Rig::new().await;
    for number in 0..100 {
        let name = format!("b{number:03}");
        let given = binding("RoleBinding", &name, &format!("Role/none-{number}"), &named("User", "eve"));
        rig.keep("rolebindings", given).await;
    }
    let refused = rig.as_user(user("eve", &[]), "GET", SECRETS, &Value::Null).await.expect(403);
    assert!(message(&refused).contains("\"none-0\" not found") && message(&refused).len() < 2000, "{refused}");
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": "rack"}});
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let status = rig.as_user(user("eve", &[]), "POST", reviews, &review).await.expect(201)["status"].clone();
    let about = |groups: usize| {
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {"groups": names(groups),
            "resourceAttributes": {"verb": "get", "resource": "secrets", "namespace": "rack"}}})
    };
    let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    rig.call("POST", reviews, &about(1000)).await.expect(201);
    rig.call("POST", reviews, &about(1001)).await.expect(422);
    let told = status["evaluationError"].as_str().unwrap();
    assert!(told.contains("\"none-0\" not found") && told.len() < 2000, "{told}");
}
