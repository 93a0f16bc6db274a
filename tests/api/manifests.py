"""What the script of kubectl applies."""

HOST = """\
apiVersion: metal3.io/v1alpha1
kind: BareMetalHost
metadata:
  name: {name}
  namespace: rack
  labels: {{tier: {tier}}}
  # Nobody drives these.
  annotations: {{baremetalhost.metal3.io/paused: ""}}
spec:
  online: true
  bootMACAddress: 52:54:00:00:00:{mac}
  bmc: {{address: "redfish://192.0.2.1/redfish/v1/Systems/{name}", credentialsName: bmc}}
"""

WIDGET_CRD = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: widgets.example.com
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList, shortNames: [wd], categories: [toys]}
  versions:
    - name: v1
      served: true
      storage: true
      subresources:
        status: {}
        scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}
      additionalPrinterColumns:
        - {name: Colour, type: string, jsonPath: .spec.colour}
        - {name: Replicas, type: integer, jsonPath: .spec.replicas}
        - {name: Size, type: string, jsonPath: .spec.size, priority: 1}
        - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
      selectableFields:
        - {jsonPath: .spec.colour}
      schema:
        openAPIV3Schema:
          type: object
          description: A thing to play with.
          required: [spec]
          properties:
            spec:
              type: object
              description: What it should be like.
              required: [colour]
              properties:
                colour: {type: string, description: Which colour it has., enum: [red, green, blue]}
                replicas: {type: integer, format: int32, minimum: 0, maximum: 100, default: 1}
                size: {type: string, pattern: '^[0-9]+cm$'}
                parts:
                  type: array
                  x-kubernetes-list-type: map
                  x-kubernetes-list-map-keys: [name]
                  items:
                    type: object
                    required: [name]
                    properties:
                      name: {type: string}
                      count: {type: integer}
            status:
              type: object
              properties:
                replicas: {type: integer}
                selector: {type: string}
                phase: {type: string}
                conditions:
                  type: array
                  items:
                    type: object
                    properties:
                      type: {type: string}
                      status: {type: string}
"""

WIDGET = """\
apiVersion: example.com/v1
kind: Widget
metadata:
  name: {name}
  namespace: rack
  labels: {{shop: {shop}}}
spec:
  colour: {colour}
  size: 5cm
  parts: [{{name: bolt, count: 1}}, {{name: nut, count: 2}}]
"""

CONFIG = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings
  namespace: rack
data:
  one: "1"
  two: "2"
"""

FILES = {
    "a.yaml": HOST.format(name="web-a", tier="web", mac="0a"),
    "b.yaml": HOST.format(name="web-b", tier="web", mac="0b"),
    "c.yaml": HOST.format(name="db-c", tier="db", mac="0c"),
    "a-off.yaml": HOST.format(name="web-a", tier="web", mac="0a").replace("online: true", "online: false"),
    "crd.yaml": WIDGET_CRD,
    "crd-bad.yaml": WIDGET_CRD.replace("name: widgets.example.com", "name: gadgets.example.com"),
    "crd-v2.yaml": WIDGET_CRD.replace("maximum: 100", "maximum: 50"),
    "red.yaml": WIDGET.format(name="red", shop="north", colour="red"),
    "red-blue.yaml": WIDGET.format(name="red", shop="north", colour="blue"),
    "green.yaml": WIDGET.format(name="green", shop="south", colour="green"),
    "config.yaml": CONFIG,
    "config-2.yaml": CONFIG.replace('one: "1"', 'one: "eins"'),
    "config-less.yaml": CONFIG.replace('  two: "2"\n', ""),
    "ssa-1.yaml": CONFIG.replace("settings", "shared"),
    "ssa-2.yaml": CONFIG.replace("settings", "shared").replace('one: "1"', 'one: "other"').replace('  two: "2"\n', ""),
    "site/one.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: site-one, namespace: rack, labels: {site: x}}\ndata: {a: b}\n",
    "site/two.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: site-two, namespace: rack, labels: {site: x}}\ndata: {a: b}\n",
    "site-less/one.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: site-one, namespace: rack, labels: {site: x}}\ndata: {a: b}\n",
    "immutable.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: fixed, namespace: rack}\nimmutable: true\nstringData: {key: value}\n",
    "immutable-2.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: fixed, namespace: rack}\nimmutable: true\nstringData: {key: other}\n",
    "generate.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: made-, namespace: rack}\ndata: {a: b}\n",
    "kept.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept, namespace: rack, finalizers: [example.com/hold]}\n",
    "held-ns.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: held, namespace: going, finalizers: [example.com/hold]}\n",
    "rbac.yaml": """\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reconciled, namespace: rack}
rules:
  - {apiGroups: [""], resources: [configmaps], verbs: [get, list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reconciled, namespace: rack}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reconciled}
subjects:
  - {kind: User, name: jane, apiGroup: rbac.authorization.k8s.io}
""",
    "kustom/kustomization.yaml": "namespace: rack\ncommonLabels: {from: kustomize}\nresources: [one.yaml]\n",
    "kustom/one.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kustomized}\ndata: {a: b}\n",
    "plain.txt": "a line\nanother line\n",
    "settings.env": "USER=root\nLEVEL=3\n",
    "status.json": '{"status": {"phase": "Ready", "replicas": 1, "conditions": [{"type": "Ready", "status": "True"}]}}',
}
