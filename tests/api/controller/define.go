package main

import (
	"context"
	"fmt"
	"reflect"

	extensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	definitions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

func pointer[T any](value T) *T { return &value }

// gadgets is a definition with a schema of every form that a schema may have.
func gadgets() *extensions.CustomResourceDefinition {
	text := extensions.JSONSchemaProps{Type: "string", MinLength: pointer(int64(1)), MaxLength: pointer(int64(10)), Pattern: "^[a-z]*$"}
	schema := extensions.JSONSchemaProps{
		Type: "object", Description: "A gadget.", Required: []string{"spec"},
		Properties: map[string]extensions.JSONSchemaProps{
			"spec": {
				Type: "object",
				Properties: map[string]extensions.JSONSchemaProps{
					"colour": {Type: "string", Enum: []extensions.JSON{{Raw: []byte(`"red"`)}, {Raw: []byte(`"blue"`)}},
						Default: &extensions.JSON{Raw: []byte(`"red"`)}},
					"names": {Type: "array", MaxItems: pointer(int64(3)), XListType: pointer("set"),
						Items: &extensions.JSONSchemaPropsOrArray{Schema: &text}},
					"labels": {Type: "object", AdditionalProperties: &extensions.JSONSchemaPropsOrBool{Allows: true, Schema: &text}},
					"size":   {Type: "number", Minimum: pointer(0.0), Maximum: pointer(1.5), ExclusiveMaximum: true},
					"port":   {XIntOrString: true, AnyOf: []extensions.JSONSchemaProps{{Type: "integer"}, {Type: "string"}}},
					"free":   {Type: "object", XPreserveUnknownFields: pointer(true)},
					"parts": {Type: "array", XListType: pointer("map"), XListMapKeys: []string{"name"},
						Items: &extensions.JSONSchemaPropsOrArray{Schema: &extensions.JSONSchemaProps{Type: "object", Required: []string{"name"},
							Properties: map[string]extensions.JSONSchemaProps{"name": text}}}},
				},
				XValidations: extensions.ValidationRules{{Rule: "!has(self.size) || self.size != 0.75", Message: "is not made"}},
			},
			"status": {Type: "object", Nullable: true, XPreserveUnknownFields: pointer(true)},
		},
	}
	// Of both versions: an API server that finds one schema in all of them wants these to be the same, too.
	selectable := []extensions.SelectableField{{JSONPath: ".spec.colour"}}
	return &extensions.CustomResourceDefinition{
		ObjectMeta: meta.ObjectMeta{Name: "gadgets.controller.example.com"},
		Spec: extensions.CustomResourceDefinitionSpec{
			Group: "controller.example.com", Scope: extensions.NamespaceScoped,
			Names: extensions.CustomResourceDefinitionNames{Plural: "gadgets", Kind: "Gadget", ShortNames: []string{"gg"}},
			Versions: []extensions.CustomResourceDefinitionVersion{
				{Name: "v1", Served: true, Storage: true, Schema: &extensions.CustomResourceValidation{OpenAPIV3Schema: &schema},
					Subresources:             &extensions.CustomResourceSubresources{Status: &extensions.CustomResourceSubresourceStatus{}},
					AdditionalPrinterColumns: []extensions.CustomResourceColumnDefinition{{Name: "Colour", Type: "string", JSONPath: ".spec.colour"}},
					SelectableFields:         selectable},
				{Name: "v0", Served: false, Storage: false, Schema: &extensions.CustomResourceValidation{OpenAPIV3Schema: &schema},
					SelectableFields: selectable},
			},
		},
	}
}

// define makes a kind and an object of it, changes the definition, and takes both away.
func define(ctx context.Context, config *rest.Config, seen *sent) error {
	clients, err := definitions.NewForConfig(config)
	if err != nil {
		return err
	}
	kinds := clients.ApiextensionsV1().CustomResourceDefinitions()
	wanted := gadgets()
	made, err := kinds.Create(ctx, wanted, meta.CreateOptions{FieldValidation: meta.FieldValidationStrict})
	if err != nil {
		return err
	}
	// The same as when it is sent as JSON.
	if !reflect.DeepEqual(made.Spec.Versions, wanted.Spec.Versions) {
		return fmt.Errorf("the versions came back as %+v", made.Spec.Versions)
	}
	name := made.Name
	err = within(ctx, "the kind is served", func() (bool, error) {
		made, err = kinds.Get(ctx, name, meta.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, condition := range made.Status.Conditions {
			if condition.Type == extensions.Established && condition.Status == extensions.ConditionTrue {
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	gadgets := objects.Resource(schema.GroupVersionResource{Group: "controller.example.com", Version: "v1", Resource: "gadgets"}).Namespace("default")
	gadget := func(spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "controller.example.com/v1", "kind": "Gadget",
			"metadata": map[string]any{"name": "one"}, "spec": spec}}
	}
	for _, wrong := range []map[string]any{{"colour": "mauve"}, {"size": 1.5}, {"size": 0.75}, {"names": []any{"a", "a"}}, {"labels": map[string]any{"a": "B"}}} {
		if _, err := gadgets.Create(ctx, gadget(wrong), meta.CreateOptions{}); err == nil {
			return fmt.Errorf("%v is taken", wrong)
		}
	}
	one, err := gadgets.Create(ctx, gadget(map[string]any{"port": "http", "free": map[string]any{"x": int64(1)}}), meta.CreateOptions{})
	if err != nil {
		return err
	}
	if colour, _, _ := unstructured.NestedString(one.Object, "spec", "colour"); colour != "red" {
		return fmt.Errorf("the default is missing: %v", one.Object)
	}
	// The whole object goes back, with its managers and its status.
	made.Labels = map[string]string{"changed": "yes"}
	made.Spec.Versions[1].Served = true
	made, err = kinds.Update(ctx, made, meta.UpdateOptions{})
	if err != nil {
		return err
	}
	if !made.Spec.Versions[1].Served || len(made.ManagedFields) == 0 {
		return fmt.Errorf("the changed definition is %+v", made)
	}
	if _, err := kinds.UpdateStatus(ctx, made, meta.UpdateOptions{}); err != nil {
		return err
	}
	if err := kinds.Delete(ctx, name, meta.DeleteOptions{}); err != nil {
		return err
	}
	err = within(ctx, "the definition goes with its objects", func() (bool, error) {
		_, err := kinds.Get(ctx, name, meta.GetOptions{})
		return err != nil, nil
	})
	if err != nil {
		return err
	}
	for _, method := range []string{"POST", "PUT"} {
		if err := seen.protobuf(method, "customresourcedefinitions"); err != nil {
			return err
		}
	}
	return nil
}
