// RocketMQ's remoting client for Go, driven by lines of JSON: `remoting ADDRESS`.
package main

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"

	"reput/interop/driver"
)

var (
	credentials = primitive.Credentials{
		AccessKey: os.Getenv("INTEROP_USER"),
		SecretKey: os.Getenv("INTEROP_SECRET"),
	}
	sender       rocketmq.Producer
	transactions rocketmq.TransactionProducer
	consumers    driver.Consumers
)

func main() {
	rlog.SetLogLevel("warn")
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	driver.Run(driver.Verbs{"produce": produce, "consume": consume, "stop": consumers.Stop, "request": ask})
}

func start() (err error) {
	if sender, err = rocketmq.NewProducer(sending("interop-go")...); err != nil {
		return err
	}
	if err = sender.Start(); err != nil {
		return err
	}
	if transactions, err = rocketmq.NewTransactionProducer(decisions{}, sending("interop-go-transactions")...); err != nil {
		return err
	}
	return transactions.Start()
}

func sending(name string) []producer.Option {
	return []producer.Option{
		producer.WithNameServer(primitive.NamesrvAddr{os.Args[1]}),
		producer.WithGroupName(name),
		// By this name producers share connections and what the broker asks.
		producer.WithInstanceName(name),
		producer.WithCredentials(credentials),
		producer.WithSendMsgTimeout(driver.Timeout),
		// By the sharding key; a random queue for messages without one.
		producer.WithQueueSelector(producer.NewHashQueueSelector()),
	}
}

// decisions are those of the property `decision`; what is neither is committed when the broker asks.
type decisions struct{}

func (decisions) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch message.GetProperty("decision") {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (decisions) CheckLocalTransaction(*primitive.MessageExt) primitive.LocalTransactionState {
	return primitive.CommitMessageState
}

func produce(request *driver.Request) (any, error) {
	background := context.Background()
	switch request.How {
	case "sync", "orderly":
		return driver.Each(request.Messages, func(letter driver.Letter) (driver.Result, error) {
			return result(sender.SendSync(background, message(request, letter)))
		})
	case "async":
		return driver.Together(request.Messages, func(letter driver.Letter, done func(driver.Result, error)) error {
			return sender.SendAsync(background, func(_ context.Context, sent *primitive.SendResult, err error) {
				done(result(sent, err))
			}, message(request, letter))
		})
	case "one-way":
		return driver.Each(request.Messages, func(letter driver.Letter) (driver.Result, error) {
			return driver.Result{}, sender.SendOneWay(background, message(request, letter))
		})
	case "batch":
		batch := make([]*primitive.Message, 0, len(request.Messages))
		for _, letter := range request.Messages {
			batch = append(batch, message(request, letter))
		}
		sent, err := result(sender.SendSync(background, batch...))
		return []driver.Result{sent}, err
	case "transaction":
		return driver.Each(request.Messages, func(letter driver.Letter) (driver.Result, error) {
			sent, err := transactions.SendMessageInTransaction(background, message(request, letter))
			if err != nil {
				return driver.Result{}, err
			}
			return result(sent.SendResult, nil)
		})
	}
	return nil, fmt.Errorf("unknown: %s", request.How)
}

func message(request *driver.Request, letter driver.Letter) *primitive.Message {
	made := primitive.NewMessage(request.Topic, letter.Body)
	for name, value := range letter.Properties {
		made.WithProperty(name, value)
	}
	if letter.Tag != "" {
		made.WithTag(letter.Tag)
	}
	if letter.Keys != "" {
		made.WithKeys([]string{letter.Keys})
	}
	if request.Key != "" {
		made.WithShardingKey(request.Key)
	}
	if request.DelayLevel > 0 {
		made.WithDelayTimeLevel(request.DelayLevel)
	}
	return made
}

func result(sent *primitive.SendResult, err error) (driver.Result, error) {
	if err != nil {
		return driver.Result{}, err
	}
	if sent.Status != primitive.SendOK {
		return driver.Result{}, fmt.Errorf("not stored: %s", sent)
	}
	return driver.Result{ID: sent.MsgID, Offset: sent.QueueOffset, QueueID: &sent.MessageQueue.QueueId}, nil
}

func ask(request *driver.Request) (any, error) {
	made := primitive.NewMessage(request.Topic, request.Body)
	answer, err := sender.Request(context.Background(), driver.Timeout, made)
	if err != nil {
		return nil, err
	}
	return answer.Body, nil
}

func consume(request *driver.Request) (any, error) {
	wanted := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	if request.SQL != "" {
		wanted = consumer.MessageSelector{Type: consumer.SQL92, Expression: request.SQL}
	} else if request.Tags != "" {
		wanted.Expression = request.Tags
	}
	if request.How == "lite" {
		return true, poll(request, wanted)
	}
	options := append(receiving(request), consumer.WithConsumerOrder(request.How == "orderly"))
	if request.How == "broadcasting" {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if request.MaxTimes > 0 {
		options = append(options, consumer.WithMaxReconsumeTimes(request.MaxTimes))
	}
	made, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return nil, err
	}
	handle := request.Handler()
	err = made.Subscribe(request.Topic, wanted,
		func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			return handled(ctx, request, messages, handle)
		})
	if err != nil {
		return nil, err
	}
	if err := made.Start(); err != nil {
		return nil, err
	}
	consumers.Add(request.Consumer, made.Shutdown)
	return true, nil
}

func receiving(request *driver.Request) []consumer.Option {
	return []consumer.Option{
		consumer.WithNameServer(primitive.NamesrvAddr{os.Args[1]}),
		consumer.WithGroupName(request.Group),
		consumer.WithInstance(request.Consumer),
		consumer.WithCredentials(credentials),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}
}

func handled(
	ctx context.Context, request *driver.Request, messages []*primitive.MessageExt, handle func(driver.Received) bool,
) (consumer.ConsumeResult, error) {
	succeeds := true
	for _, each := range messages {
		succeeds = handle(described(each)) && succeeds
		if request.Reply {
			if err := reply(each); err != nil {
				return consumer.ConsumeRetryLater, err
			}
		}
	}
	if succeeds {
		return consumer.ConsumeSuccess, nil
	}
	if request.How == "orderly" {
		return consumer.SuspendCurrentQueueAMoment, nil
	}
	if options, ok := primitive.GetConcurrentlyCtx(ctx); ok {
		options.DelayLevelWhenNextConsume = 1
	}
	return consumer.ConsumeRetryLater, nil
}

func reply(received *primitive.MessageExt) error {
	made, err := consumer.CreateReplyMessage(received, nil)
	if err != nil {
		return err
	}
	// The function takes its argument for properties.
	made.Body = append([]byte("reply to "), received.Body...)
	_, err = sender.SendSync(context.Background(), made)
	return err
}

// poll starts a pull consumer, and handles what it polls until it is ended.
func poll(request *driver.Request, wanted consumer.MessageSelector) error {
	made, err := rocketmq.NewPullConsumer(receiving(request)...)
	if err != nil {
		return err
	}
	if err := made.Subscribe(request.Topic, wanted); err != nil {
		return err
	}
	if err := made.Start(); err != nil {
		return err
	}
	var ended atomic.Bool
	consumers.Add(request.Consumer, func() error {
		ended.Store(true)
		return made.Shutdown()
	})
	handle := request.Handler()
	go func() {
		background := context.Background()
		for !ended.Load() {
			polled, err := made.Poll(background, time.Second)
			if consumer.IsNoNewMsgError(err) {
				continue
			} else if err != nil {
				fmt.Fprintln(os.Stderr, err)
				continue
			}
			outcome, err := handled(background, request, polled.GetMsgList(), handle)
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
			made.ACK(background, polled, outcome)
		}
	}()
	return nil
}

func described(received *primitive.MessageExt) driver.Received {
	return driver.Received{
		Topic:      received.Topic,
		QueueID:    received.Queue.QueueId,
		Offset:     received.QueueOffset,
		ID:         received.MsgId,
		Body:       received.Body,
		Tag:        received.GetTags(),
		Keys:       received.GetKeys(),
		Properties: received.GetProperties(),
		Times:      received.ReconsumeTimes,
	}
}
