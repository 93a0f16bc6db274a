package main

import (
	"context"
	"fmt"

	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	applycore "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
)

const space = "controller"

// objects makes, changes, follows and removes one of each core kind that controllers use.
func objects(ctx context.Context, config *rest.Config, seen *sent) error {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	named := meta.ObjectMeta{Name: "one", Labels: map[string]string{"app": "controller"}}
	create := meta.CreateOptions{FieldValidation: meta.FieldValidationStrict}
	if _, err := clients.CoreV1().Namespaces().Create(ctx, &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: space}}, create); err != nil {
		return err
	}
	maps := clients.CoreV1().ConfigMaps(space)

	// An informer that is there before the objects: it sees what follows in its watch.
	factory := informers.NewSharedInformerFactoryWithOptions(clients, 0, informers.WithNamespace(space))
	lister := factory.Core().V1().ConfigMaps().Lister().ConfigMaps(space)
	follows, end := context.WithCancel(ctx)
	defer end()
	factory.Start(follows.Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return fmt.Errorf("the informer of %s does not begin", kind)
		}
	}

	made, err := maps.Create(ctx, &core.ConfigMap{ObjectMeta: named, Data: map[string]string{"a": ""}, BinaryData: map[string][]byte{"b": {0xff, 0}}}, create)
	if err != nil {
		return err
	}
	made.Data["a"] = "x"
	changed, err := maps.Update(ctx, made, meta.UpdateOptions{})
	if err != nil {
		return err
	}
	if len(changed.ManagedFields) != 1 || changed.BinaryData["b"][0] != 0xff {
		return fmt.Errorf("a ConfigMap came back as %v", changed)
	}
	err = within(ctx, "the informer sees the change", func() (bool, error) {
		followed, err := lister.Get("one")
		return err == nil && followed.Data["a"] == "x", err
	})
	if err != nil {
		return err
	}
	// Sending the object without its managers leaves them alone; emptying the list forgets them.
	applied, err := maps.Apply(ctx, applycore.ConfigMap("one", space).WithData(map[string]string{"c": "y"}), meta.ApplyOptions{FieldManager: "applier"})
	if err != nil {
		return err
	}
	if len(applied.ManagedFields) != 2 {
		return fmt.Errorf("an applied ConfigMap has the managers %v", applied.ManagedFields)
	}
	secret := &core.Secret{ObjectMeta: named, Data: map[string][]byte{"key": []byte("value")}, Type: core.SecretTypeOpaque}
	if _, err := clients.CoreV1().Secrets(space).Create(ctx, secret, create); err != nil {
		return err
	}
	if _, err := clients.CoreV1().ServiceAccounts(space).Create(ctx, &core.ServiceAccount{ObjectMeta: named}, create); err != nil {
		return err
	}
	seconds := int64(600)
	token, err := clients.CoreV1().ServiceAccounts(space).CreateToken(ctx, "one", &authentication.TokenRequest{
		Spec: authentication.TokenRequestSpec{ExpirationSeconds: &seconds}}, create)
	if err != nil || token.Status.Token == "" {
		return fmt.Errorf("a token: %w", err)
	}
	rules := []rbac.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get"}}}
	if _, err := clients.RbacV1().Roles(space).Create(ctx, &rbac.Role{ObjectMeta: named, Rules: rules}, create); err != nil {
		return err
	}
	binding := &rbac.RoleBinding{ObjectMeta: named, RoleRef: rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "Role", Name: "one"},
		Subjects: []rbac.Subject{{Kind: "ServiceAccount", Name: "one", Namespace: space}}}
	if _, err := clients.RbacV1().RoleBindings(space).Create(ctx, binding, create); err != nil {
		return err
	}
	// As a webhook's or a metrics server's client asks who somebody is, and what he may.
	who, err := clients.AuthenticationV1().TokenReviews().Create(ctx, &authentication.TokenReview{
		Spec: authentication.TokenReviewSpec{Token: token.Status.Token}}, create)
	if err != nil || !who.Status.Authenticated {
		return fmt.Errorf("a review of a token: %v: %w", who, err)
	}
	for resource, wanted := range map[string]bool{"configmaps": true, "secrets": false} {
		may, err := clients.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorization.SubjectAccessReview{
			Spec: authorization.SubjectAccessReviewSpec{User: who.Status.User.Username, Groups: who.Status.User.Groups,
				ResourceAttributes: &authorization.ResourceAttributes{Namespace: space, Verb: "get", Resource: resource}}}, create)
		if err != nil || may.Status.Allowed != wanted {
			return fmt.Errorf("a review of access to %s: %v: %w", resource, may, err)
		}
	}
	if err := events(ctx, clients, applied); err != nil {
		return err
	}
	// What a recorder sends is JSON; a client of the kind sends what it sends of others.
	told := &core.Event{ObjectMeta: named, Reason: "Told", Type: core.EventTypeNormal, Count: 1, FirstTimestamp: meta.Now(),
		InvolvedObject: core.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: space, Name: "one"}}
	if _, err := clients.CoreV1().Events(space).Create(ctx, told, create); err != nil {
		return err
	}
	for _, resource := range []string{"namespaces", "configmaps", "secrets", "serviceaccounts", "token", "roles", "rolebindings",
		"tokenreviews", "subjectaccessreviews", "events"} {
		if err := seen.protobuf("POST", resource); err != nil {
			return err
		}
	}
	if err := clients.CoreV1().Namespaces().Delete(ctx, space, meta.DeleteOptions{}); err != nil {
		return err
	}
	return seen.protobuf("DELETE", "namespaces")
}

// events tells of an object twice, which makes one event that is counted.
func events(ctx context.Context, clients kubernetes.Interface, about runtime.Object) error {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: clients.CoreV1().Events("")})
	recorder := broadcaster.NewRecorder(scheme.Scheme, core.EventSource{Component: "controller"})
	for range 2 {
		recorder.Event(about, core.EventTypeNormal, "Tried", "it was tried")
	}
	return within(ctx, "the event is there and counted", func() (bool, error) {
		list, err := clients.CoreV1().Events(space).List(ctx, meta.ListOptions{FieldSelector: "reason=Tried"})
		return err == nil && len(list.Items) == 1 && list.Items[0].Count == 2, err
	})
}
