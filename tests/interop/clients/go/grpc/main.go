// RocketMQ's gRPC client for Go, driven by lines of JSON: `grpc ADDRESS`, where the address is a proxy's.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	client "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	"go.uber.org/zap"

	"reput/interop/driver"
)

const (
	await      = 5 * time.Second
	invisible  = 60 * time.Second
	againAfter = time.Second
)

var consumers driver.Consumers

func main() {
	// By default the client logs into a directory of the root.
	os.Setenv("rocketmq.client.logRoot", "logs")
	client.ResetLogger()
	if err := connectWithOptions(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	driver.Run(driver.Verbs{"produce": produce, "consume": consume, "stop": consumers.Stop})
}

// connectWithOptions has the client compare the proxy's certificate with an authority, if there is one, and not log its
// connections. No option of producers and consumers does either: by default the client trusts any certificate, and logs
// into a file in /tmp.
func connectWithOptions() error {
	options := []client.ConnOption{client.WithZapLogger(zap.NewNop())}
	file := os.Getenv("INTEROP_CA")
	client.EnableSsl = file != ""
	if client.EnableSsl {
		authority, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		trusted := x509.NewCertPool()
		trusted.AppendCertsFromPEM(authority)
		options = append(options, client.WithTLSConfig(&tls.Config{RootCAs: trusted}))
	}
	connect := client.NewRpcClient
	client.NewRpcClient = func(target string, more ...client.RpcClientOption) (client.RpcClient, error) {
		return connect(target, append(more, client.WithRpcClientConnOption(options...))...)
	}
	return nil
}

func configuration(group string) *client.Config {
	return &client.Config{
		Endpoint:      os.Args[1],
		ConsumerGroup: group,
		Credentials: &credentials.SessionCredentials{
			AccessKey:    os.Getenv("INTEROP_USER"),
			AccessSecret: os.Getenv("INTEROP_SECRET"),
		},
	}
}

var (
	producers = make(map[string]client.Producer)
	making    sync.Mutex
)

// producer returns the producer of a topic, which it names to the proxy when it starts.
func producer(topic string) (client.Producer, error) {
	making.Lock()
	defer making.Unlock()
	if found, ok := producers[topic]; ok {
		return found, nil
	}
	made, err := client.NewProducer(configuration(""), client.WithTopics(topic),
		client.WithTransactionChecker(&client.TransactionChecker{
			Check: func(*client.MessageView) client.TransactionResolution { return client.COMMIT },
		}))
	if err != nil {
		return nil, err
	}
	made.SetRequestTimeout(driver.Timeout)
	if err := made.Start(); err != nil {
		return nil, err
	}
	producers[topic] = made
	return made, nil
}

func produce(request *driver.Request) (any, error) {
	sender, err := producer(request.Topic)
	if err != nil {
		return nil, err
	}
	background := context.Background()
	switch request.How {
	case "sync", "orderly":
		return driver.Each(request.Messages, func(letter driver.Letter) (driver.Result, error) {
			return result(sender.Send(background, message(request, letter)))
		})
	case "async":
		return driver.Together(request.Messages, func(letter driver.Letter, done func(driver.Result, error)) error {
			sender.SendAsync(background, message(request, letter),
				func(_ context.Context, receipts []*client.SendReceipt, err error) { done(result(receipts, err)) })
			return nil
		})
	case "transaction":
		return driver.Each(request.Messages, func(letter driver.Letter) (driver.Result, error) {
			transaction := sender.BeginTransaction()
			sent, err := result(sender.SendWithTransaction(background, message(request, letter), transaction))
			if err == nil && letter.Properties["decision"] == "commit" {
				err = transaction.Commit()
			} else if err == nil && letter.Properties["decision"] == "rollback" {
				err = transaction.RollBack()
			}
			return sent, err
		})
	}
	return nil, fmt.Errorf("unknown: %s", request.How)
}

func message(request *driver.Request, letter driver.Letter) *client.Message {
	made := &client.Message{Topic: request.Topic, Body: letter.Body}
	if letter.Tag != "" {
		made.SetTag(letter.Tag)
	}
	made.SetKeys(strings.Fields(letter.Keys)...)
	for name, value := range letter.Properties {
		made.AddProperty(name, value)
	}
	if request.Key != "" {
		made.SetMessageGroup(request.Key)
	}
	if request.DelayMs > 0 {
		made.SetDelayTimestamp(time.Now().Add(time.Duration(request.DelayMs) * time.Millisecond))
	}
	return made
}

func result(receipts []*client.SendReceipt, err error) (driver.Result, error) {
	if err != nil {
		return driver.Result{}, err
	}
	return driver.Result{ID: receipts[0].MessageID, Offset: receipts[0].Offset}, nil
}

func consume(request *driver.Request) (any, error) {
	wanted := client.NewFilterExpression("*")
	if request.SQL != "" {
		wanted = client.NewFilterExpressionWithType(request.SQL, client.SQL92)
	} else if request.Tags != "" {
		wanted = client.NewFilterExpression(request.Tags)
	}
	handle := request.Handler()
	topics := map[string]*client.FilterExpression{request.Topic: wanted}
	if request.How == "simple" {
		return true, receive(request, topics, handle)
	}
	consumer, err := client.NewPushConsumer(configuration(request.Group),
		client.WithPushAwaitDuration(await),
		client.WithPushSubscriptionExpressions(topics),
		client.WithPushMessageListener(&client.FuncMessageListener{
			Consume: func(received *client.MessageView) client.ConsumerResult {
				if handle(described(received)) {
					return client.SUCCESS
				}
				return client.FAILURE
			},
		}))
	if err != nil {
		return nil, err
	}
	consumer.SetRequestTimeout(driver.Timeout)
	if err := consumer.Start(); err != nil {
		return nil, err
	}
	consumers.Add(request.Consumer, consumer.GracefulStop)
	return true, nil
}

// receive starts a simple consumer, and handles what it receives until it is ended.
func receive(
	request *driver.Request, topics map[string]*client.FilterExpression, handle func(driver.Received) bool,
) error {
	consumer, err := client.NewSimpleConsumer(configuration(request.Group),
		client.WithSimpleAwaitDuration(await), client.WithSimpleSubscriptionExpressions(topics))
	if err != nil {
		return err
	}
	consumer.SetRequestTimeout(driver.Timeout)
	if err := consumer.Start(); err != nil {
		return err
	}
	var ended atomic.Bool
	consumers.Add(request.Consumer, func() error {
		ended.Store(true)
		return consumer.GracefulStop()
	})
	go func() {
		background := context.Background()
		for !ended.Load() {
			// It also returns an error when there is no message.
			received, err := consumer.Receive(background, 16, invisible)
			for _, each := range received {
				if handle(described(each)) {
					err = consumer.Ack(background, each)
				} else {
					err = consumer.ChangeInvisibleDuration(each, againAfter)
				}
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	return nil
}

func described(received *client.MessageView) driver.Received {
	tag := ""
	if given := received.GetTag(); given != nil {
		tag = *given
	}
	return driver.Received{
		Topic: received.GetTopic(),
		// A gRPC client gets no place in a queue.
		QueueID:    -1,
		Offset:     -1,
		ID:         received.GetMessageId(),
		Body:       received.GetBody(),
		Tag:        tag,
		Keys:       driver.Joined(received.GetKeys()),
		Properties: received.GetProperties(),
		Times:      received.GetDeliveryAttempt() - 1,
	}
}
