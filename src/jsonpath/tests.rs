//! Tests of JSONPath, by what kubectl prints.

use super::*;
use serde_json::json;

fn list() -> Value {
    json!({"kind": "List", "items": [
        {"metadata": {"name": "a", "labels": {"example.org/role": "edge"}}, "n": 1,
         "status": {"conditions": [{"type": "A", "status": "False"}, {"type": "Ready", "status": "True"}]}},
        {"metadata": {"name": "b"}, "n": 2, "status": {"conditions": []}},
        {"metadata": {"name": "c"}, "n": 3, "tags": ["x", "y"]},
    ]})
}

#[test]
fn templates_print_what_kubectl_prints() {
    for (template, wanted) in [
        ("{.items[*].metadata.name}", "a b c"),
        ("{$.kind}: {.items[0].metadata.name}!", "List: a!"),
        ("{.items[-1:].metadata.name}", "c"),
        ("{.items[0:2].n}", "1 2"),
        ("{.items[::2].n}", "1 3"),
        ("{.items[0,2].n}", "1 3"),
        ("{range .items[*]}{.metadata.name}{\"\\t\"}{.n}{\"\\n\"}{end}", "a\t1\nb\t2\nc\t3\n"),
        ("{range.items[?(@.n>1)]}[{.metadata['name']}]{end}", "[b][c]"),
        ("{.items[?(@.metadata.name==\"b\")].n}", "2"),
        ("{.items[?(@.metadata.name!='b')].n}", "1 3"),
        ("{.items[?(@.tags)].metadata.name}", "c"),
        ("{.items[0].metadata.labels.example\\.org/role}", "edge"),
        ("{.items[0].metadata.labels['example.org/role']}", "edge"),
        ("{.items[0].status.conditions[?(@.type=='Ready')].status}", "True"),
        ("{.items[0].none.deeper}", ""),
        ("{..name}", "a b c"),
        ("{.items[2].tags}", "[\"x\",\"y\"]"),
        (
            "{.items[0]['n','status']}",
            "1 {\"conditions\":[{\"status\":\"False\",\"type\":\"A\"},{\"status\":\"True\",\"type\":\"Ready\"}]}",
        ),
        ("{\"a } in quotes\"}", "a } in quotes"),
    ] {
        assert_eq!(Template::parse(template).unwrap().render(&list()), wanted, "{template}");
    }
}

#[test]
fn single_paths_need_no_braces() {
    for path in [".kind", "kind", "{.kind}", "$.kind", "{$.kind}"] {
        assert_eq!(Path::parse(path).unwrap().find(&list()), [&json!("List")], "{path}");
    }
    assert_eq!(Path::parse(".").unwrap().find(&json!(5)), [&json!(5)]);
}

#[test]
fn columns_find_the_first_value() {
    let value = json!({
        "metadata": {"labels": {"example.org/role": "edge"}},
        "status": {"state": "ok", "n": 0, "list": [1, 2, 3],
            "conditions": [{"type": "A", "status": "False"}, {"type": "Ready", "status": "True"}]}
    });
    for (path, wanted) in [
        (".status.state", Some(json!("ok"))),
        ("$.status.state", Some(json!("ok"))),
        (".status.n", Some(json!(0))),
        (".status.none.deeper", None),
        (".status.list[1]", Some(json!(2))),
        (".status.list[-1]", Some(json!(3))),
        (".status.list[9]", None),
        (".status.list[*]", Some(json!(1))),
        (".status.conditions[?(@.type==\"Ready\")].status", Some(json!("True"))),
        (".status.conditions[?(@.type!='Ready')].status", Some(json!("False"))),
        (".status.conditions[?(@.type=='Gone')].status", None),
        (".metadata.labels['example.org/role']", Some(json!("edge"))),
        (".metadata.labels.example\\.org/role", Some(json!("edge"))),
    ] {
        assert_eq!(Path::parse_plain(path).unwrap().first(&value), wanted.as_ref(), "{path}");
    }
    let deep = format!(".a{}1{}", "[?(@.a".repeat(9), ")]".repeat(9));
    for path in [
        "",
        ".",
        "..",
        "..a",
        ".a[",
        ".a[x]",
        ".a[?(b)]",
        ".a\\",
        ".a[0,0]",
        ".a['b','c']",
        ".a[1:]",
        ".a[?(@..b)]",
        ".a[?(@.b==$..c)]",
        ".a[?(@.b==$.c)]",
        ".a[*][?($.a[*].b==1)]",
        ".a[?(@.b[?(@.c==1)])]",
        &deep,
    ] {
        assert!(Path::parse_plain(path).is_err(), "{path}");
    }
}

#[test]
fn all_that_is_looked_at_lies_below_the_first_fields() {
    for (path, wanted) in [
        (".a.b", &["a", "b"][..]),
        (".a[0].b", &["a"]),
        (".a[?(@.b==1)].c", &["a"]),
        ("$.a.b", &["a", "b"]),
        (".a[?(@.b==$.c)].d", &[]),
        (".a[?(@.b[?(@.x==$.y)])].d", &[]),
        ("[*].a", &[]),
    ] {
        assert_eq!(Path::parse(path).unwrap().fields().collect::<Vec<_>>(), wanted, "{path}");
    }
}

#[test]
fn what_is_no_template_says_why() {
    for (text, reason) in [
        ("{.a", "unclosed action"),
        ("{range .a}", "range without end"),
        ("{end}", "end without range"),
        ("{.a[}", "unclosed bracket"),
        ("{.a[x]}", "neither an index"),
        ("{.a[?(b==1)]}", "begins with @"),
    ] {
        let error = Template::parse(text).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}
