package main

import (
	"context"
	"fmt"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// candidate runs for leader until it is stopped; it tells when it leads, and when it has ended.
func candidate(ctx context.Context, config *rest.Config, name string) (leads <-chan struct{}, ended <-chan struct{}, err error) {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, "default", "controller", clients.CoreV1(),
		clients.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: name})
	if err != nil {
		return nil, nil, err
	}
	leading, over := make(chan struct{}), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, ReleaseOnCancel: true, Name: name,
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 200 * time.Millisecond,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(leading) },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return nil, nil, err
	}
	go func() {
		elector.Run(ctx)
		close(over)
	}()
	return leading, over, nil
}

// elect has two candidates, the second of which leads once the first has gone.
func elect(ctx context.Context, config *rest.Config, seen *sent) error {
	first, goes := context.WithCancel(ctx)
	defer goes()
	leads, over, err := candidate(first, config, "first")
	if err != nil {
		return err
	}
	if err := reached(ctx, leads, "the first leads"); err != nil {
		return err
	}
	second, stop := context.WithCancel(ctx)
	defer stop()
	next, ended, err := candidate(second, config, "second")
	if err != nil {
		return err
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	lease := func() (string, int32, time.Time, error) {
		lease, err := clients.CoordinationV1().Leases("default").Get(ctx, "controller", meta.GetOptions{})
		if err != nil {
			return "", 0, time.Time{}, err
		}
		return *lease.Spec.HolderIdentity, *lease.Spec.LeaseTransitions, lease.Spec.RenewTime.Time, nil
	}
	_, _, before, err := lease()
	if err != nil {
		return err
	}
	err = within(ctx, "the first renews its lease", func() (bool, error) {
		holder, _, renewed, err := lease()
		return err == nil && holder == "first" && renewed.After(before), err
	})
	if err != nil {
		return err
	}
	select {
	case <-next:
		return fmt.Errorf("two lead at once")
	default:
	}
	goes()
	if err := reached(ctx, over, "the first ends"); err != nil {
		return err
	}
	if err := reached(ctx, next, "the second leads"); err != nil {
		return err
	}
	holder, transitions, _, err := lease()
	if err != nil {
		return err
	}
	if holder != "second" || transitions == 0 {
		return fmt.Errorf("the lease is %s's after %d transitions", holder, transitions)
	}
	stop()
	if err := reached(ctx, ended, "the second ends"); err != nil {
		return err
	}
	if err := seen.protobuf("POST", "leases"); err != nil {
		return err
	}
	if err := seen.protobuf("PUT", "leases"); err != nil {
		return err
	}
	return clients.CoordinationV1().Leases("default").Delete(ctx, "controller", meta.DeleteOptions{})
}

func reached(ctx context.Context, event <-chan struct{}, what string) error {
	return within(ctx, what, func() (bool, error) {
		select {
		case <-event:
			return true, nil
		default:
			return false, nil
		}
	})
}
