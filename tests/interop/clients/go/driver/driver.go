// Package driver carries out the lines of JSON of interop/client.py with one of RocketMQ's clients for Go.
package driver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"sync"
	"time"
)

// Timeout is how long a client waits for an answer, where it has an option for that.
const Timeout = 30 * time.Second

// Request is a line of stdin; what it lacks is empty.
type Request struct {
	ID         json.Number
	Do         string
	How        string
	Topic      string
	Messages   []Letter
	Key        string
	DelayLevel int
	DelayMs    int64
	Consumer   string
	Group      string
	Tags       string
	SQL        string
	Fail       int
	MaxTimes   int32
	Reply      bool
	Body       []byte
}

// Letter is a message to send.
type Letter struct {
	Body       []byte
	Tag        string
	Keys       string
	Properties map[string]string
}

// Result is of a message that was sent.
type Result struct {
	ID      string `json:"id"`
	Offset  int64  `json:"offset"`
	QueueID *int   `json:"queueId,omitempty"`
}

// Received is a message as a consumer has received it.
type Received struct {
	Topic      string            `json:"topic"`
	QueueID    int               `json:"queueId"`
	Offset     int64             `json:"offset"`
	ID         string            `json:"id"`
	Body       []byte            `json:"body"`
	Tag        string            `json:"tag"`
	Keys       string            `json:"keys"`
	Properties map[string]string `json:"properties"`
	Times      int32             `json:"times"`
}

// Verbs are functions by what requests ask for; each returns the answer.
type Verbs map[string]func(*Request) (any, error)

var (
	out  = json.NewEncoder(os.Stdout)
	said sync.Mutex
)

// Run carries out requests, each in a goroutine of its own, until the end of stdin, which ends the process.
func Run(verbs Verbs) {
	// Stdout is for lines of JSON.
	os.Stdout = os.Stderr
	say(map[string]any{"event": "ready"})
	for lines := json.NewDecoder(os.Stdin); ; {
		request := new(Request)
		if err := lines.Decode(request); errors.Is(err, io.EOF) {
			os.Exit(0)
		} else if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		go answer(verbs, request)
	}
}

func answer(verbs Verbs, request *Request) {
	verb, known := verbs[request.Do]
	if !known {
		verb = func(*Request) (any, error) { return nil, fmt.Errorf("unknown: %s", request.Do) }
	}
	line := map[string]any{"id": request.ID}
	if ok, err := verb(request); err != nil {
		fmt.Fprintln(os.Stderr, err)
		line["error"] = err.Error()
	} else {
		line["ok"] = ok
	}
	say(line)
}

func say(line map[string]any) {
	said.Lock()
	defer said.Unlock()
	if err := out.Encode(line); err != nil {
		os.Exit(1)
	}
}

// Handler returns a function that writes what the consumer of a request receives, and returns whether a delivery
// succeeds: the first ones of each message fail, as many as the request names.
func (r *Request) Handler() func(Received) bool {
	var mutex sync.Mutex
	seen := make(map[string]int)
	return func(received Received) bool {
		if received.Properties == nil {
			received.Properties = map[string]string{}
		}
		say(map[string]any{"event": "received", "consumer": r.Consumer, "message": received})
		mutex.Lock()
		defer mutex.Unlock()
		seen[string(received.Body)]++
		return seen[string(received.Body)] > r.Fail
	}
}

// Consumers are running consumers by name, each with what ends it.
type Consumers struct {
	mutex sync.Mutex
	ends  map[string]func() error
}

// Add notes a consumer.
func (c *Consumers) Add(name string, end func() error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.ends == nil {
		c.ends = make(map[string]func() error)
	}
	c.ends[name] = end
}

// Stop begins to end the consumer of a request. It does not wait: a client may take as long as its open requests.
func (c *Consumers) Stop(request *Request) (any, error) {
	c.mutex.Lock()
	end, found := c.ends[request.Consumer]
	delete(c.ends, request.Consumer)
	c.mutex.Unlock()
	if !found {
		return nil, fmt.Errorf("no consumer %s", request.Consumer)
	}
	go func() {
		if err := end(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	return true, nil
}

// Each sends messages one after the other, and returns their results.
func Each(messages []Letter, send func(Letter) (Result, error)) ([]Result, error) {
	results := make([]Result, 0, len(messages))
	for _, message := range messages {
		result, err := send(message)
		if err != nil {
			return nil, err
		}
		results = append(results, result)
	}
	return results, nil
}

// Together sends messages without waiting for one before the next, and returns their results in order of sending.
// The function given to `send` is called once with each message's result.
func Together(messages []Letter, send func(Letter, func(Result, error)) error) ([]Result, error) {
	results, errs := make([]Result, len(messages)), make([]error, len(messages))
	var open sync.WaitGroup
	for number, message := range messages {
		open.Add(1)
		var once sync.Once
		if err := send(message, func(result Result, err error) {
			once.Do(func() {
				results[number], errs[number] = result, err
				open.Done()
			})
		}); err != nil {
			return nil, err
		}
	}
	open.Wait()
	return results, errors.Join(errs...)
}

// Joined returns keys as one text, sorted.
func Joined(keys []string) string {
	sorted := append([]string(nil), keys...)
	sort.Strings(sorted)
	return strings.Join(sorted, " ")
}
