// A controller as others write them, with client-go and its defaults: it defines its kind, is elected leader, follows
// objects and reports. `python3 tests/api/clients.py go` runs it.
//
//	controller KUBECONFIG
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// The longest that anything here may take.
const deadline = 60 * time.Second

// sent counts what was sent, by method, resource and content type.
type sent struct {
	mutex sync.Mutex
	kinds map[string]int
}

func (s *sent) wrap(inner http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		if request.Body != nil {
			s.mutex.Lock()
			path := strings.Split(strings.TrimPrefix(request.URL.Path, "/"), "/")
			for _, word := range path {
				s.kinds[request.Method+" "+word+" "+request.Header.Get("Content-Type")]++
			}
			s.mutex.Unlock()
		}
		return inner.RoundTrip(request)
	})
}

// protobuf says whether objects of this resource were sent as protobuf.
func (s *sent) protobuf(method, resource string) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.kinds[method+" "+resource+" application/vnd.kubernetes.protobuf"] == 0 {
		return fmt.Errorf("client-go sent no %s of %s as protobuf: this tries nothing", method, resource)
	}
	return nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

func run(path string) error {
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return err
	}
	config.Timeout = deadline
	config.QPS, config.Burst = 100, 100
	seen := &sent{kinds: map[string]int{}}
	config.Wrap(seen.wrap)
	ctx, cancel := context.WithTimeout(context.Background(), 4*deadline)
	defer cancel()
	parts := []struct {
		name string
		run  func(context.Context, *rest.Config, *sent) error
	}{
		{"objects of core kinds", objects},
		{"leader election", elect},
		{"a definition and its kind", define},
	}
	for _, part := range parts {
		if err := part.run(ctx, config, seen); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		fmt.Println(part.name)
	}
	return nil
}

// within waits until it is done, or says why it is not.
func within(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	for {
		ready, err := done()
		if ready {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %s: %w", what, deadline, errors.Join(err, ctx.Err()))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "controller KUBECONFIG")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
