//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"flashsale/internal/testing/child"
	"flashsale/internal/testing/contract"
	"flashsale/internal/testing/freeport"
)

// standIn runs the service with the arguments, and returns its exit code. A command that serves
// the API gets another address, and this process passes on its traffic.
func standIn(ctx context.Context, binary, reports string, args []string) (int, error) {
	public, moved, err := moveAddress(args)
	if err != nil {
		return 0, err
	}
	if moved == nil {
		return 0, syscall.Exec(binary, append([]string{binary}, args...), os.Environ())
	}
	r, err := openReport(reports)
	if err != nil {
		return 0, err
	}
	hold, err := awaitPredecessor(args, public)
	if err != nil {
		return 0, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", public)
	if err != nil {
		return 0, err
	}
	service := exec.CommandContext(context.WithoutCancel(ctx), binary, moved...) // it is ended by a signal
	service.Stdout, service.Stderr = os.Stdout, os.Stderr
	service.ExtraFiles = []*os.File{hold}
	ended := make(chan error, 1)
	if err := child.Start(service, func(err error) { ended <- err }); err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	srv := &http.Server{Handler: newProxy(argument(moved, "--addr"), r), ReadHeaderTimeout: time.Minute}
	go srv.Serve(l) //nolint:errcheck // it ends when the service does
	for {
		select {
		case s := <-signals:
			// An error means that the service has ended.
			_ = service.Process.Signal(s) //nolint:errcheck // see above
		case err := <-ended:
			drain(srv)
			return exitCode(err)
		}
	}
}

// drain passes on the responses that the service has sent before it ended.
func drain(srv *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) //nolint:forbidigo // clean-up has its own context
	defer cancel()
	if srv.Shutdown(ctx) != nil {
		_ = srv.Close() //nolint:errcheck // the process ends now
	}
}

// exitCode converts the end of the service to an exit code.
func exitCode(err error) (int, error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		return exit.ExitCode(), nil
	default:
		return 0, err
	}
}

// moveAddress returns the address that a command serves the API on, and the arguments with
// another one; nil if it does not serve the API.
func moveAddress(args []string) (public string, moved []string, err error) {
	public = argument(args, "--addr")
	if len(args) == 0 || args[0] != "serve" && args[0] != "api" || public == "" {
		return "", nil, nil
	}
	private, err := freeport.Addr()
	if err != nil {
		return "", nil, err
	}
	moved = slices.Clone(args)
	moved[slices.Index(moved, "--addr")+1] = private
	return public, moved, nil
}

// argument returns the value of a flag, or "".
func argument(args []string, name string) string {
	if i := slices.Index(args, name); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

// awaitPredecessor waits until an earlier service with the same address and data has ended. After
// a kill of its stand-in the kernel kills it, too, but a test that starts the next one would not
// wait for that. The service has to inherit the file, so that it is locked until it ends.
func awaitPredecessor(args []string, public string) (*os.File, error) {
	dir := argument(args, "--data-dir")
	if dir == "" {
		dir = os.TempDir()
	}
	_, port, err := net.SplitHostPort(public)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, ".contractproxy-"+port), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return f, syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
}

// proxy passes on requests, once it has the document from the service.
type proxy struct {
	service string
	report  *report
	base    *http.Transport

	mu    sync.Mutex
	ready http.Handler // nil: the document has not been read yet
}

func newProxy(service string, r *report) *proxy {
	return &proxy{service: service, report: r, base: &http.Transport{
		MaxIdleConnsPerHost: 1000,
		DisableCompression:  true, // the client gets what the service sends
	}}
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	next, err := p.next(r.Context())
	if err != nil {
		// The client sees what it would see without this process: no connection.
		panic(http.ErrAbortHandler)
	}
	p.report.count()
	next.ServeHTTP(w, r)
}

// next returns the handler that checks requests and passes them on.
func (p *proxy) next(ctx context.Context) (http.Handler, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ready != nil {
		return p.ready, nil
	}
	document, err := p.document(ctx)
	if err != nil {
		return nil, err
	}
	c, err := contract.Parse(document)
	if err != nil {
		p.report.add(err)
		return nil, err
	}
	p.ready = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: p.service})
			r.Out.Host, r.Out.URL.RawQuery = r.In.Host, r.In.URL.RawQuery
		},
		Transport:     c.Transport(p.base, p.report.add),
		FlushInterval: -1,
		// The service has closed the connection, and so does this process.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	return p.ready, nil
}

// document reads the document that the service serves.
func (p *proxy) document(ctx context.Context) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.service+"/openapi.yaml", http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := p.base.RoundTrip(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET /openapi.yaml: %d", resp.StatusCode)
	}
	return string(text), err
}
