// The part of a kubelet that tunnels go through, for nodes that are only played: an API server connects to it when somebody
// asks for a port of a pod.
//
//	kubelet ADDRESS CERTIFICATE KEY TABLE
//
// TABLE is a file with a JSON object of addresses by POD:PORT. It is read at each request.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubelet/pkg/cri/streaming/portforward"
)

const (
	idle   = 10 * time.Minute
	create = 30 * time.Second
)

type table string

func (file table) PortForward(ctx context.Context, pod string, _ types.UID, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	text, err := os.ReadFile(string(file))
	if err != nil {
		return err
	}
	addresses := map[string]string{}
	if err := json.Unmarshal(text, &addresses); err != nil {
		return err
	}
	address, known := addresses[fmt.Sprintf("%s:%d", pod, port)]
	if !known {
		return fmt.Errorf("pod %s has no port %d", pod, port)
	}
	connection, err := (&net.Dialer{Timeout: create}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer connection.Close()
	ended := make(chan struct{}, 2)
	for _, way := range []struct {
		to   io.Writer
		from io.Reader
	}{{connection, stream}, {stream, connection}} {
		go func() {
			io.Copy(way.to, way.from)
			ended <- struct{}{}
		}()
	}
	<-ended
	return nil
}

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "kubelet ADDRESS CERTIFICATE KEY TABLE")
		os.Exit(2)
	}
	http.HandleFunc("/portForward/{namespace}/{pod}", func(answer http.ResponseWriter, request *http.Request) {
		options, err := portforward.NewV4Options(request)
		if err != nil {
			http.Error(answer, err.Error(), http.StatusBadRequest)
			return
		}
		portforward.ServePortForward(answer, request, table(os.Args[4]), request.PathValue("pod"), "", options, idle, create,
			portforward.SupportedProtocols)
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServeTLS(os.Args[1], os.Args[2], os.Args[3], nil))
	os.Exit(1)
}
